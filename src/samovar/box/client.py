"""`samovar.box.connect`: a served box, and its named buffers, for your own program."""

import math
import os
import re
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from samovar.box.base import SeatCenter, Versions
from samovar.box.buffers import BufferShape, require_name
from samovar.box.endpoints import BoxView, Endpoints, create_shards, drop_shards, parse_endpoints, take_shards, view
from samovar.box.joining import BoxSeat, buffer_names
from samovar.box.local import DEFAULT_BOX
from samovar.core.clock import Deadline
from samovar.core.closing import Closing
from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, SamovarError, require_whole
from samovar.transports.base import Array

_WHO = "samovar.box"
_LONGEST_S = 86_400
_FLAG_OR_COMMAND = re.compile(r"`[^`]*`|--[a-z-]*[a-z]")
_ARGUMENTS = {"--box": "box", "--key-file": "key_file", "--timeout": "timeout_s"}


def connect(
    box: str | Sequence[str] = DEFAULT_BOX, key_file: str | Path | None = None, timeout_s: float = 30.0
) -> "Box":
    """The box that `samovar box serve` serves: a name on this host, or "HOST:PORT" with the box's key file.

    Several boxes in a list hold one part of each buffer. No call takes longer than `timeout_s`; then it raises
    DeadlineExceeded.

    Raises InputError if the arguments cannot be used or nobody serves one of the boxes on this host.
    """
    if not (_is_number(timeout_s) and 0 < timeout_s <= _LONGEST_S):
        raise InputError(f"{_WHO}: timeout_s is {timeout_s!r}; give more than 0 and at most a day")
    named = ",".join(map(str, box)) if isinstance(box, list | tuple) else str(box)
    with _in_python():
        places = parse_endpoints(named, _path(key_file))
        deadline = Deadline.after(timeout_s)
        for place in places.boxes:
            buffer_names(place, _WHO, deadline)
    return Box(places, timeout_s)


class Box:
    """A served box, as `samovar.box.connect` gives it. Each call connects by itself, so nothing is to be closed."""

    def __init__(self, places: Endpoints, timeout_s: float) -> None:
        self._places, self._timeout_s = places, timeout_s

    def names(self) -> list[str]:
        """The names of the buffers, sorted. Of several boxes, those of the first one."""
        with _in_python():
            return buffer_names(self._places.boxes[0], _WHO, self._deadline())

    def buffer(self, name: str, num_elements: int | None = None, *, with_velocity: bool = False) -> "BoxBuffer":
        """The buffer `name`. With `num_elements` it is made, with zeros, if the box has none of this name.

        `with_velocity`: a new buffer takes updates with momentum, and needs twice the memory. Raises InputError if
        there is no such buffer, or it has another size or no velocity.
        """
        require_name(name)
        _require_shape(num_elements, with_velocity)
        with _in_python():
            if name not in self.names():
                self._make(name, num_elements, with_velocity=with_velocity)
            made = BoxBuffer(self._places, name, view(self._places, name, _WHO, self._deadline()), self._timeout_s)
        if num_elements not in (None, made.num_elements):
            unlike = f"{made.num_elements:,} elements, and num_elements is {num_elements!r}"
        elif with_velocity and not made.has_velocity:
            unlike = "no velocity, and with_velocity is True"
        else:
            return made
        made.close()
        raise InputError(f"{_WHO}: buffer {name!r} of {self._places} has {unlike}; take another name, or drop it first")

    def drop(self, name: str) -> None:
        """Delete a buffer. Programs that use it keep it until they end. Raises InputError if there is none."""
        require_name(name)
        with _in_python():
            drop_shards(self._places, name, _WHO, self._deadline())

    def __repr__(self) -> str:
        return f"Box({self._places})"

    def _make(self, name: str, num_elements: int | None, *, with_velocity: bool) -> None:
        if num_elements is None:
            there = ", ".join(self.names()) or "none"
            raise InputError(
                f"{_WHO}: {self._places} has no buffer {name!r}; there are: {there}. Give num_elements to make it"
            )
        shape = BufferShape(int(num_elements), with_velocity=with_velocity)
        # Another program may make it now, too.
        create_shards(self._places, name, shape, _WHO, self._deadline(), goes_on=True)

    def _deadline(self) -> Deadline:
        return Deadline.after(self._timeout_s)


class BoxBuffer(Closing):
    """A buffer c of a box: float32 (N,), which programs change together. A context manager, which leaves at its end.

    Arrays are of NumPy, or tensors on the CPU, of any shape with N elements. `get` only looks. The first change takes
    a seat in the buffer. From then on `samovar box list` shows this program, and workers that train there count it.
    `close` gives the seat back, or the end of the last reference to the buffer.

    `versions`, int64 (num_chunks,), are the updates of each chunk at the last `get`, `accumulate` or `exchange`. Calls
    raise DeadlineExceeded after the `timeout_s` of `connect`, NotFinite if c would become infinite or NaN, RankFailed
    once the box has ended. A change that met DeadlineExceeded may still come to c: one that is made again may count
    twice.

    Cost: 4N bytes for each call, from or to another host; 8N for `exchange`.
    """

    def __init__(self, places: Endpoints, name: str, viewed: BoxView, timeout_s: float) -> None:
        self.name, self.num_elements = name, viewed.shape.num_elements
        self.has_velocity = viewed.shape.with_velocity
        self.versions: Versions = np.zeros(0, np.int64)
        self._places, self._timeout_s = places, timeout_s
        self._view = viewed
        self._seat: BoxSeat | None = None
        self._num_updates = 0
        self._process_id, self._lock = os.getpid(), threading.Lock()
        self._ends = ExitStack()
        self._ends.callback(viewed.close)
        self._end = weakref.finalize(self, _leave, self._ends, self._process_id)
        self._end.atexit = False  # the process's end says it

    def get(self, into: Any = None) -> Array:
        """c, float32 (N,), in a new array or `into` this one. Each chunk is whole, also if others change it."""
        array = np.empty(self.num_elements, np.float32) if into is None else self._in_place("get", into)
        center = self._view.center if self._seat is None else self._seat.center
        self.versions = center.read(array, self._open("get"))
        return array

    def put(self, values: Any) -> None:
        """c = values. This overwrites changes by others, so do it before they begin."""
        array = self._finite("put", self._floats("put", values))
        with self._turn("put") as deadline:
            self._center(deadline).write(array, deadline)

    def accumulate(self, difference: Any, momentum: float = 0.0) -> None:
        """c += difference, once and whole; with momentum m and the buffer's velocity v: v = m v + difference, c += v.

        Raises InputError if there is a momentum and the buffer has no velocity.
        """
        array = self._finite("accumulate", self._floats("accumulate", difference), momentum)
        with self._turn("accumulate") as deadline:
            self.versions = self._center(deadline).accumulate(self._next(), array, deadline, momentum)

    def exchange(self, weights: Any, moving_rate: float) -> None:
        """d = moving_rate (x - c), x -= d, c += d for x = `weights`, which are changed in place: elastic averaging."""
        array = self._finite("exchange", self._in_place("exchange", weights), moving_rate)
        with self._turn("exchange") as deadline:
            self.versions = self._center(deadline).exchange(self._next(), array, moving_rate, deadline)

    def close(self) -> None:
        """Leave the buffer, which stays in the box. A second call does nothing."""
        if self._process_id == os.getpid() and self._end.detach():
            self._ends.close()

    def __repr__(self) -> str:
        return f"BoxBuffer({self.name!r}, {self.num_elements:,} elements, {self._places})"

    def _center(self, deadline: Deadline) -> SeatCenter:
        """The center of this program's seat, which is taken the first time."""
        if self._seat is None:
            with _in_python():
                seat = take_shards(self._places, self.name, _WHO, deadline, timeout_s=self._timeout_s)
            if seat.shape != self._view.shape:
                seat.close()
                raise InputError(f"{_WHO}: buffer {self.name!r} was made again, with another size; open it again")
            self._ends.callback(seat.close)
            self._seat = seat
        return self._seat.center

    def _next(self) -> int:
        self._num_updates += 1
        return self._num_updates

    def _open(self, what: str) -> Deadline:
        """The deadline of a call. Raises InputError after `close`."""
        if not self._end.alive or self._process_id != os.getpid():  # a fork's updates would have its parent's numbers
            how = "was closed" if not self._end.alive else "was opened by the process that forked this one"
            raise InputError(f"{what}: buffer {self.name!r} {how}; open it again with box.buffer({self.name!r})")
        return Deadline.after(self._timeout_s)

    @contextmanager
    def _turn(self, what: str) -> Iterator[Deadline]:
        """Of one thread at a time: a seat's updates come in the order of their numbers, or are taken for old ones."""
        deadline = self._open(what)
        if not self._lock.acquire(timeout=deadline.timeout_s()):
            raise DeadlineExceeded(f"{what}: other threads change {self.name!r} all the time; raise timeout_s")
        try:
            yield deadline
        finally:
            self._lock.release()

    def _floats(self, what: str, values: Any) -> Array:
        """`values` as float32 (N,). Raises InputError."""
        given = values.detach() if hasattr(values, "detach") else values  # a tensor, also one that trains
        try:
            found = np.asarray(given)
        except (TypeError, ValueError) as error:
            raise InputError(f"{what}: {error}; give an array or a CPU tensor, of a type that NumPy has") from error
        if found.dtype.kind not in "biuf":  # NumPy reads texts as numbers, and leaves out imaginary parts
            raise InputError(f"{what}: got values of type {found.dtype}; give floats, integers or booleans")
        array = np.ascontiguousarray(found, np.float32).reshape(-1)
        if array.size != self.num_elements:
            raise InputError(
                f"{what}: got {array.size:,} elements, and buffer {self.name!r} has {self.num_elements:,}; give all "
                "of them"
            )
        return array

    def _finite(self, what: str, array: Array, rate: float = 0.0) -> Array:
        """`array`. Raises NotFinite before anything of it comes to c, and InputError about a rate."""
        if not _is_number(rate):
            raise InputError(f"{what}: its rate is {rate!r}; give a finite number")
        if not (self._view.shape.takes_any or np.isfinite(array).all()):
            raise NotFinite(f"{what}: refused, the values are not finite")
        return array

    def _in_place(self, what: str, given: Any) -> Array:
        """The memory of `given`, which will change. Raises InputError if that would be a copy."""
        array = self._floats(what, given)
        own = np.asarray(given.detach() if hasattr(given, "detach") else given)
        if not np.may_share_memory(array, own) or not own.flags.writeable:
            raise InputError(
                f"{what}: its array is changed in place, and this one is {own.dtype} with strides {own.strides}; give "
                "a float32 array that is contiguous and writeable"
            )
        return array


def _leave(ends: ExitStack, process_id: int) -> None:
    """The end of a buffer that was not closed. In a fork it is still its parent's."""
    if process_id == os.getpid():
        with suppress(SamovarError):
            ends.close()


def _path(key_file: Any) -> Path | None:
    try:
        return None if key_file is None else Path(key_file)
    except TypeError as error:
        raise InputError(f"{_WHO}: key_file is {key_file!r}; give the path of a file as text") from error


def _require_shape(num_elements: object, with_velocity: object) -> None:
    if num_elements is not None:
        require_whole(f"{_WHO}: num_elements", num_elements, least=1)
    if not isinstance(with_velocity, bool):
        raise InputError(f"{_WHO}: with_velocity is {with_velocity!r}; give True or False")


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an integer that no float can be
        return False


@contextmanager
def _in_python() -> Iterator[None]:
    """Errors name arguments in place of the flags of `samovar box`."""
    try:
        yield
    except InputError as error:
        error.args = (_FLAG_OR_COMMAND.sub(lambda found: _ARGUMENTS.get(found[0], found[0]), str(error)),)
        raise
