"""A box in plain NumPy: what `samovar.box.serving` asks of one, exactly once per (member, chunk), as the native one."""

import threading
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from samovar.box.base import Versions
from samovar.box.board import NUM_WORDS, Member, MemberProgress, Origin, Row
from samovar.box.buffers import Buffer, BufferShape, Notes
from samovar.box.protocol import NOBODY, Attachment
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, RankFailed

Array = npt.NDArray[np.float32]


class NumpyBoard:
    """See `samovar.box.board.Rows`; `changes` has everything that was done to it."""

    def __init__(self, max_members: int = 64) -> None:
        self.max_members = max_members
        self.words = [0] * NUM_WORDS
        self.shown: dict[int, Row] = {}
        self.changes: list[tuple[object, ...]] = []
        self.notes: dict[Member, Notes] = {}

    def row(self, index: int) -> Row:
        return self.shown.get(index, Row(Member(index, 0), 0, False, MemberProgress()))

    def rows(self) -> list[Row]:
        return [self.shown[index] for index in sorted(self.shown)]

    def post(self, member: Member, progress: MemberProgress) -> None:
        self.shown[member.index] = Row(member, 1, True, progress)
        self.changes.append(("post", member, progress.steps))

    def word(self, index: int) -> int:
        return self.words[index]

    def set_word(self, index: int, value: int) -> None:
        self.words[index] = value
        self.changes.append(("set", index, value))

    def claim_word(self, index: int, value: int) -> int:
        self.words[index] = self.words[index] or value
        self.changes.append(("claim", index, value))
        return self.words[index]


class NumpyCenter:
    """Outlives servers, as held memory does; `log` has every update that was applied to a chunk."""

    def __init__(self, shape: BufferShape) -> None:
        self.shape = shape
        self.values = np.zeros(shape.num_elements, np.float32)
        self.velocity = np.zeros(shape.num_elements, np.float32)
        self.versions = np.zeros(shape.num_chunks, np.int64)
        self.sequences: dict[Member, npt.NDArray[np.int64]] = {}
        self.answers: dict[Member, Array] = {}
        self.board = NumpyBoard()
        self.keeps_log = True
        self.log: list[tuple[Member, int, int, Array]] = []
        self.lock = threading.Lock()

    def part(self, chunk: int) -> slice:
        size = self.shape.chunk_elements
        return slice(chunk * size, min((chunk + 1) * size, self.shape.num_elements))

    def apply(self, member: Member, sequence: int, chunk: int, difference: Array, momentum: float = 0.0) -> None:
        part = self.part(chunk)
        if momentum:
            self.velocity[part] = np.float32(momentum) * self.velocity[part] + difference
            difference = self.velocity[part].copy()
        self.values[part] += difference
        self.versions[chunk] += 1
        self.sequences[member][chunk] = sequence
        if self.keeps_log:
            self.log.append((member, sequence, chunk, difference))


class NumpySeat:
    """See `samovar.box.seats.Seat`; its own center, too, as `samovar.box.mapped.MappedCenter`."""

    def __init__(self, center: NumpyCenter, member: Member) -> None:
        self.member = member
        self.shape = center.shape
        self.memory = center
        self.center = self
        self.token = id(center)
        self.board = center.board
        self.answers = center.answers[member] if member in center.answers else np.zeros(0, np.float32)
        notes = center.board.notes
        if member not in notes:
            notes[member] = np.array([member.incarnation, 0, 0], np.uint64)
        self.notes = notes[member]
        self.lock_wait_s = 0.0

    def read_chunks(self, first_chunk: int, destination: Array, _deadline: Deadline) -> Versions:
        with self.memory.lock:
            destination[:] = self.memory.values[self._elements(first_chunk, destination)]
            return self._versions(first_chunk, destination)

    def write_chunks(self, first_chunk: int, values: Array, _deadline: Deadline) -> None:
        with self.memory.lock:
            self.memory.values[self._elements(first_chunk, values)] = values

    def read_velocity_chunks(self, first_chunk: int, destination: Array, _deadline: Deadline) -> Versions:
        with self.memory.lock:
            destination[:] = self.memory.velocity[self._elements(first_chunk, destination)]
            return self._versions(first_chunk, destination)

    def write_velocity_chunks(self, first_chunk: int, values: Array, _deadline: Deadline) -> None:
        with self.memory.lock:
            self.memory.velocity[self._elements(first_chunk, values)] = values

    def post(self, progress: MemberProgress) -> None:
        self.board.post(self.member, progress)

    def show_away(self, *, is_away: bool) -> None:
        if self.member.index in self.board.shown:
            self.board.post(self.member, replace(self.board.row(self.member.index).progress, away=is_away))

    def accumulate_chunks(
        self, first_chunk: int, sequence: int, difference: Array, _deadline: Deadline, momentum: float
    ) -> Versions:
        with self.memory.lock:
            for chunk, part in self._new_chunks(first_chunk, difference, sequence):
                self.memory.apply(self.member, sequence, chunk, difference[part].copy(), momentum)
            return self._versions(first_chunk, difference)

    def exchange_chunks(
        self,
        first_chunk: int,
        sequence: int,
        weights: Array,
        moving_rate: float,
        _deadline: Deadline,
        moved: Array,
    ) -> Versions:
        with self.memory.lock:
            for chunk, part in self._new_chunks(first_chunk, weights, sequence):
                difference = self.difference(weights[part], self.memory.values[self.memory.part(chunk)], moving_rate)
                moved[part] = weights[part] - difference
                self.memory.apply(self.member, sequence, chunk, difference)
            return self._versions(first_chunk, weights)

    def difference(self, weights: Array, center: Array, rate: float) -> Array:
        return np.float32(rate) * (weights - center)

    def holds(self, first_chunk: int, num_chunks: int, sequence: int) -> npt.NDArray[np.bool_]:
        return self.memory.sequences[self.member][first_chunk : first_chunk + num_chunks] >= sequence

    def close(self) -> None:
        pass

    def _elements(self, first_chunk: int, floats: Array) -> slice:
        start = first_chunk * self.shape.chunk_elements
        return slice(start, start + len(floats))

    def _new_chunks(self, first_chunk: int, floats: Array, sequence: int) -> list[tuple[int, slice]]:
        size = self.shape.chunk_elements
        count = -(-len(floats) // size)
        held = self.holds(first_chunk, count, sequence)
        return [(first_chunk + k, slice(k * size, (k + 1) * size)) for k in range(count) if not held[k]]

    def _versions(self, first_chunk: int, floats: Array) -> Versions:
        count = -(-len(floats) // self.shape.chunk_elements)
        return self.memory.versions[first_chunk : first_chunk + count].copy()


class NumpyHost:
    """See `samovar.box.seats.BufferHost`; `members` are those whose place is theirs."""

    def __init__(self, centers: dict[str, NumpyCenter]) -> None:
        self.centers = centers
        self.num_members = 0
        self.members: set[Member] = set()

    def attach(self, attachment: Attachment, member: Member, _origin: Origin) -> NumpySeat:
        center = self._center(attachment.name)
        if member.incarnation == 0:
            self.num_members += 1
            member = Member(self.num_members - 1, self.num_members)
            self.members.add(member)
            center.sequences[member] = np.zeros(center.shape.num_chunks, np.int64)
            center.answers[member] = np.zeros(center.shape.num_elements, np.float32)
        if member not in self.members:
            raise RankFailed(f"member {member.index} of incarnation {member.incarnation} is gone; join again")
        return NumpySeat(center, member)

    def view(self, name: str) -> NumpySeat:
        return NumpySeat(self._center(name), NOBODY)

    @property
    def buffers(self) -> "NumpyHost":
        return self

    def create(self, name: str, shape: BufferShape, _attempt: int) -> Buffer:
        is_new = name not in self.centers
        if is_new:
            self.centers[name] = NumpyCenter(replace(shape, max_members=64, with_velocity=True))
        return Buffer(-1, -1, is_new)

    def drop(self, name: str) -> None:
        if self.centers.pop(name, None) is None:
            raise InputError(f"no center {name!r}")

    def names(self) -> list[str]:
        return sorted(self.centers)

    def _center(self, name: str) -> NumpyCenter:
        if name not in self.centers:
            raise InputError(f"no center {name!r}; there are: {', '.join(self.centers) or 'none'}")
        return self.centers[name]
