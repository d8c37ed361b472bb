"""Fixtures for tests of whole runs."""

import signal
from collections.abc import Iterator

import pytest

from tests.multiproc.digits import digits
from tests.multiproc.served import Served

__all__ = ["digits"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A box for all tests of a file; its server ends well."""
    box = Served(tmp_path_factory.mktemp("box"))
    with box.running() as server:
        yield box
        server.send(signal.SIGTERM)
        assert server.wait().return_code == 0


@pytest.fixture
def buffer(served: Served) -> Iterator[str]:
    with served.buffer() as name:
        yield name
