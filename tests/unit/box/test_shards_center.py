"""A center made of centers: the same bits as one, and every update once in each, whatever fails and is tried again."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from samovar.box.base import Push, SeatCenter, Versions
from samovar.box.board import Member
from samovar.box.buffers import BufferShape
from samovar.box.mapped import MappedCenter, create_center
from samovar.box.shards import ShardedCenter, cut
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, RankFailed
from samovar.transports.base import Array

SIZE, CHUNK, MEMBERS, UPDATES = 600, 64, 3, 12
Make = Callable[[Sequence[SeatCenter]], ShardedCenter]


def soon() -> Deadline:
    return Deadline.after(30.0)


@contextmanager
def parts_of(count: int, num_members: int = 1) -> Iterator[list[list[MappedCenter]]]:
    """Each member's parts of one center in `count` memories."""
    shapes = cut(BufferShape(SIZE, chunk_elements=CHUNK), count)
    made = [create_center(shape.num_elements, 4, with_velocity=True, chunk_elements=CHUNK) for shape in shapes]
    members = [[MappedCenter(each, Member(index, 1)) for each in made] for index in range(num_members)]
    yield members
    for part in (part for parts in members for part in parts):
        part.close()
    for each in made:
        os.close(each)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_bits_of_one_center(count: int) -> None:
    found = [history(parts) for parts in (1, count)]
    assert found[0] == found[1]


def history(count: int) -> bytes:
    generator = np.random.default_rng(3)
    weights, got = generator.standard_normal((2, SIZE)).astype(np.float32)
    with parts_of(count) as (parts,):
        center = ShardedCenter(parts)
        center.write(weights[::-1].copy(), soon())
        for sequence in range(1, 25, 4):
            weights += generator.standard_normal(SIZE).astype(np.float32)
            center.exchange(sequence, weights, 0.3, soon())
            center.accumulate(sequence + 1, weights, soon(), momentum=0.9)
            center.accumulate_in_background(sequence + 2, weights).wait(soon())
            center.exchange_in_background(sequence + 3, weights, 0.2).wait(soon())
        center.read(got, soon())
        velocity = np.empty_like(got)
        center.read_velocity(velocity, soon())
        center.close()
    return weights.tobytes() + got.tobytes() + velocity.tobytes()


class Flaky:
    """A mapped part of which about every third request or answer is lost."""

    def __init__(self, part: MappedCenter, rng: random.Random) -> None:
        self._part, self._rng = part, rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        return self._perhaps(lambda: self._part.accumulate(sequence, difference, deadline, momentum))

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        return self._perhaps(lambda: self._part.exchange(sequence, weights, moving_rate, deadline))

    def accumulate_in_background(self, sequence: int, difference: Array) -> Push:
        return self._part.accumulate_in_background(sequence, difference)

    def _perhaps(self, work: Callable[[], Versions]) -> Versions:
        luck = self._rng.random()
        if luck < 0.2:
            raise DeadlineExceeded("the request was lost")
        versions = work()
        if luck < 0.4:
            raise DeadlineExceeded("the answer was lost")
        return versions


class SwappedParts(ShardedCenter):
    """Planted: on the second try each part gets the other's elements."""

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        if sequence == getattr(self, "before", None):
            difference = np.roll(difference, SIZE // 2)
        self.before = sequence
        return super().accumulate(sequence, difference, deadline, momentum)


class SkippedPart(ShardedCenter):
    """Planted: a try again leaves the last part out."""

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        every, self._shards = self._shards, self._shards[: -1 if sequence == getattr(self, "before", None) else None]
        self.before = sequence
        try:
            return super().accumulate(sequence, difference, deadline, momentum)
        finally:
            self._shards = every


class NewNumber(ShardedCenter):
    """Planted: a try again is numbered as if it were another update."""

    tries = 0

    def accumulate(self, _sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        self.tries += 1
        return super().accumulate(1000 + self.tries, difference, deadline, momentum)

    def exchange(self, _sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        self.tries += 1
        return super().exchange(1000 + self.tries, weights, moving_rate, deadline)


class EarlyReturn(ShardedCenter):
    """Planted: who moves takes the first part's answer for that of all."""

    def _on_all(self, work: Callable[[SeatCenter, slice], Any]) -> list[Any]:
        return [work(part, own) for part, own in self._shards[:1]]


def conserves(make: Make, seed: int) -> bool:
    """Whether the sum of all x_i and c is in whole numbers what it was, and c as many updates old as were made."""
    rng, generator = random.Random(seed), np.random.default_rng(seed)
    weights = [generator.integers(-99, 99, SIZE).astype(np.float32) for _ in range(MEMBERS)]
    total = sum(weights)
    with parts_of(2, MEMBERS) as members:
        centers = [make([Flaky(part, rng) for part in parts]) for parts in members]
        for sequence in range(1, UPDATES + 1):
            for center, own in zip(centers, weights, strict=True):
                update(center, sequence, own, rng)
        got = np.zeros(SIZE, np.float32)
        versions = centers[0].read(got, soon())
        for center in centers:
            center.close()
    return bool((sum(weights) + got == total).all() and (versions == MEMBERS * UPDATES).all())


def update(center: ShardedCenter, sequence: int, weights: Array, rng: random.Random) -> None:
    """One of this member's, tried until it is done."""
    is_exchange, difference = rng.random() < 0.5, np.arange(SIZE, dtype=np.float32) % 7
    if not is_exchange:
        weights -= difference
    while True:
        try:
            if is_exchange:
                center.exchange(sequence, weights, 1.0, soon())
            else:
                center.accumulate(sequence, difference, soon())
        except DeadlineExceeded:
            continue
        return


@pytest.mark.parametrize("seed", range(10))
def test_each_update_counts_once_in_each_part(seed: int) -> None:
    assert conserves(ShardedCenter, seed)


@pytest.mark.parametrize("make", [SwappedParts, SkippedPart, NewNumber, EarlyReturn])
def test_planted_mistakes_are_found(make: Make) -> None:
    assert not all(conserves(make, seed) for seed in range(3))


class Broken:
    """A part that fails."""

    num_elements, chunk_elements = SIZE, CHUNK

    def __init__(self, error: Exception) -> None:
        self._error = error

    def read(self, _destination: Array, _deadline: Deadline) -> Versions:
        raise self._error


def test_the_error_that_no_second_try_mends_is_raised() -> None:
    late, gone = Broken(DeadlineExceeded("late")), Broken(RankFailed("join again"))
    center = ShardedCenter([late, gone])  # type: ignore[list-item]
    with pytest.raises(RankFailed, match="join again"):
        center.read(np.zeros(2 * SIZE, np.float32), soon())
    center.close()
