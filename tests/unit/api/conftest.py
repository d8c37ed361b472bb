"""A process group of one process, which needs no launcher."""

import os
from collections.abc import Iterator

import pytest

from samovar.api.process_group import ProcessGroup
from samovar.collectives.engine import PlannedCollectives
from samovar.core.group import Group
from samovar.transports.shm import ShmTransport, create_segment


@pytest.fixture
def team() -> Iterator[ProcessGroup]:
    segment = create_segment(1)
    transport = ShmTransport(segment, Group(0, 1), oversubscribed=False)
    yield ProcessGroup(PlannedCollectives(transport, lambda _num_bytes: "direct"), 5.0)
    transport.close()
    os.close(segment)
