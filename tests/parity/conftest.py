"""Fixtures of parity tests: the digits, and runs that are trained once a session."""

from pathlib import Path

import pytest

from tests.multiproc.digits import digits
from tests.parity.trained import Trainer

__all__ = ["digits", "train"]


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("trained"), digits)
