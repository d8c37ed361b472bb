"""What a worker's layers count (BatchNorm), when its process has died and another one goes on for it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from samovar.box.board import Board, create_board
from samovar.box.mapped import MappedCenter, create_center
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.core.layout import Layout, ParameterSpec
from samovar.membership.members import OwnMembers
from samovar.membership.progress_table import ProgressTable
from samovar.strategies.box_terms import MEAN
from samovar.training.evaluated import CenterWeights
from samovar.transports.shm import ShmTransport, create_segment

LAYOUT = Layout.pack([ParameterSpec("weight", (20,)), ParameterSpec("mean", (3,), is_learned=False)])


class Memory:
    """What stays when the worker's process dies."""

    def __init__(self) -> None:
        self.segment, self.center = create_segment(1), create_center(LAYOUT.num_elements, 1)
        self.descriptors = [self.segment, self.center, board := create_board(1)]
        self.board = Board(board)
        self.member = self.board.join(0)

    @contextmanager
    def life(self, is_back: bool) -> Iterator[tuple[ProgressTable, CenterWeights, np.ndarray]]:
        """A process of the worker, whose layers start with a mean of 7."""
        transport = ShmTransport(self.segment, Group(0, 1), oversubscribed=True, is_back=is_back)
        members = OwnMembers(self.board, self.member, 1, lambda _: False, MEAN, 0)
        weights = FlatBuffer.zeros(LAYOUT)
        mean = weights.view("mean").numpy()
        mean[:] = 7.0
        crew = ProgressTable(transport, members, lambda _: False, 0, mean.size)
        with MappedCenter(self.center) as center:
            yield crew, CenterWeights(center, False, weights, ["mean"], crew, lambda: Deadline.after(10)), mean
        transport.close()

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    made.close()


def test_a_later_life_goes_on_from_what_the_earlier_one_counted(memory: Memory) -> None:
    with memory.life(is_back=False) as (crew, evaluated, mean):
        evaluated.publish_statistics()
        crew.is_ready()
        mean[:] = 3.0
        evaluated.publish_statistics()
    with memory.life(is_back=True) as (_, evaluated, mean):
        evaluated.take_statistics()
        assert mean.tolist() == [3.0] * 3


def test_an_earlier_life_that_died_before_it_counted_takes_nothing_away(memory: Memory) -> None:
    with memory.life(is_back=False):
        pass
    with memory.life(is_back=True) as (_, evaluated, mean):
        evaluated.take_statistics()
        assert mean.tolist() == [7.0] * 3
