"""The places of parameters in the flat buffer, and its division into buckets.

Offsets and sizes count elements of 4 bytes (float32). Every parameter starts on 64 bytes.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from samovar import _native

Scalar = TypeVar("Scalar", bound=np.generic)

ALIGNMENT_ELEMENTS = 16  # 64 bytes: a cache line, and the widest vector register


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A parameter as its owner describes it; `channels_last` stores a 4-D shape (O, C, H, W) as O, H, W, C.

    A parameter that is not learned (frozen, or a statistic of forward) has no gradient and belongs to no bucket.
    """

    name: str
    shape: tuple[int, ...]
    channels_last: bool = False
    is_learned: bool = True

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in memory; with `channels_last` its last dimension is the second of `shape`."""
        return (self.shape[0], *self.shape[2:], self.shape[1]) if self.channels_last else self.shape


@dataclass(frozen=True, slots=True)
class Entry:
    """A parameter's place: elements [offset, offset + spec.size) of the flat buffer."""

    spec: ParameterSpec
    offset: int

    @property
    def stop(self) -> int:
        return self.offset + self.spec.size

    def view(self, flat: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """The parameter in a flat array, in its logical shape (strided where it is stored channels-last)."""
        stored = flat[self.offset : self.stop].reshape(self.spec.stored_shape)
        return np.moveaxis(stored, -1, 1) if self.spec.channels_last else stored


@dataclass(frozen=True, slots=True)
class Bucket:
    """Consecutive parameters, exchanged as one: elements [start, stop), padding included.

    Whole ones, unless it is one rank's part of a bucket.
    """

    index: int
    entries: tuple[Entry, ...]
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Layout:
    """Learned parameters in the order in which backward finishes them, then the others."""

    entries: tuple[Entry, ...]
    num_elements: int

    @classmethod
    def pack(cls, specs: Iterable[ParameterSpec]) -> "Layout":
        """Place the specs one after the other, those that are not learned last, each start rounded up to 64 bytes."""
        entries = []
        offset = 0
        for spec in sorted(specs, key=lambda spec: not spec.is_learned):
            entries.append(Entry(spec, offset))
            offset += _aligned(spec.size)
        return cls(tuple(entries), offset)

    def buckets(self, bucket_size_bytes: int | None = None) -> tuple[Bucket, ...]:
        """Cut learned parameters into buckets of at least `bucket_size_bytes` (the last may be smaller); None is one.

        A parameter is never split, so 1 gives one bucket per parameter.
        """
        learned = self.learned
        if not learned:
            return ()
        limit = self.num_elements if bucket_size_bytes is None else max(1, -(-bucket_size_bytes // 4))
        groups: list[list[Entry]] = [[]]
        for entry in learned:
            if groups[-1] and _aligned(groups[-1][-1].stop) - groups[-1][0].offset >= limit:
                groups.append([])
            groups[-1].append(entry)
        return tuple(_bucket(index, group) for index, group in enumerate(groups))

    @property
    def learned(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.spec.is_learned)

    def parts(self, names: Collection[str]) -> tuple[slice, ...]:
        """The places of these parameters, each with the padding behind it."""
        return tuple(slice(entry.offset, _aligned(entry.stop)) for entry in self.entries if entry.spec.name in names)

    def cut(self, lengths: Sequence[int]) -> tuple[Bucket, ...]:
        """Buckets of `lengths` learned parameters each, in order; the lengths must add up to all of them."""
        learned = self.learned
        assert sum(lengths) == len(learned), f"{sum(lengths)} parameters in buckets, {len(learned)} are learned"
        assert all(length > 0 for length in lengths), lengths
        stops = list(accumulate(lengths))
        groups = [learned[stop - length : stop] for length, stop in zip(lengths, stops, strict=True)]
        return tuple(_bucket(index, group) for index, group in enumerate(groups))

    def fingerprint(self) -> str:
        """SHA-256 over names, shapes, order and offsets: ranks with equal layouts have equal fingerprints."""
        specs = [(entry.spec, entry.offset) for entry in self.entries]
        rows = [[s.name, list(s.shape), s.channels_last, s.is_learned, offset] for s, offset in specs]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _bucket(index: int, entries: Sequence[Entry]) -> Bucket:
    return Bucket(index, tuple(entries), entries[0].offset, _aligned(entries[-1].stop))


def _aligned(size: int) -> int:
    return rounded_up(size, ALIGNMENT_ELEMENTS)


def rounded_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `number`."""
    return -(-number // multiple) * multiple


# At weights, whether they are finite: seldom enough to cost nothing, often enough that a run of ten steps is told.
LOOK_EVERY_STEPS: Final = 8


def all_finite(values: npt.NDArray[np.float32]) -> bool:
    """Cost: one read of `values`, float32 (N,), contiguous."""
    return _native.all_finite(values)


def first_not_finite(entries: Iterable[Entry], values: npt.NDArray[np.float32]) -> str:
    """The name of the first parameter of `entries` with values that are not finite in `values`, or ""."""
    return next((entry.spec.name for entry in entries if not all_finite(values[entry.offset : entry.stop])), "")
