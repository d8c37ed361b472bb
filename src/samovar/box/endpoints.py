"""Centers in one box or over several boxes: make one, join it, look into it, delete it."""

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from samovar.box.base import SeatCenter
from samovar.box.buffers import BufferShape, new_token
from samovar.box.joining import (
    BoxSeat,
    Endpoint,
    Look,
    buffer_names,
    create_buffer,
    drop_buffer,
    look_at,
    parse_endpoint,
    take_seat,
    view_center,
)
from samovar.box.local import DEFAULT_BOX
from samovar.box.shards import CenterShard, ShardedBoard, ShardedCenter, cut, whole_of
from samovar.core.clock import Deadline, polled
from samovar.core.errors import InputError, RankFailed, SamovarError

MOST_BOXES: Final = 64
_PATIENCE_S, _POLL_S = 5.0, 0.02
_MOST_NAME_CHARACTERS: Final = 64
_MOST_WAIT_S: Final = 10.0  # before anything has begun


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The boxes of a center, in the order of its shards; the first one's board is that of all members."""

    boxes: tuple[Endpoint, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.boxes))

    @property
    def is_far(self) -> bool:
        """Whether to look at the board takes a round trip."""
        return self.boxes[0].address is not None

    @property
    def transports(self) -> frozenset[str]:
        """How their memory is reached: "shm" where it is mapped, "tcp" over the network."""
        return frozenset("shm" if endpoint.address is None else "tcp" for endpoint in self.boxes)


def parse_endpoints(text: str, key_file: Path | None) -> Endpoints:
    """One or more arguments of `parse_endpoint`, separated by commas; one key file for all at HOST:PORT.

    Raises InputError, also if a box is named twice.
    """
    words = text.split(",")
    has_address = ":" in text
    boxes = tuple(parse_endpoint(word, key_file if ":" in word or not has_address else None) for word in words)
    if len(boxes) > MOST_BOXES:
        raise InputError(f"--box: {len(boxes)} boxes; a center is in at most {MOST_BOXES}")
    if twice := [word for word, box in zip(words, boxes, strict=True) if boxes.count(box) > 1]:
        raise InputError(f"--box {text}: names {twice[0]} twice; each box holds one part")
    return Endpoints(boxes)


def create_shards(
    endpoints: Endpoints, name: str, shape: BufferShape, who: str, deadline: Deadline, *, goes_on: bool = False
) -> Endpoint | None:
    """Make a buffer of zeros of this shape, its shards in their boxes; None when that is done.

    A box that has a buffer of this name already is returned, and nothing is made; but with `goes_on` an earlier try
    may have made some. The first box's shard is made last: where it is, all are. Raises InputError as `create_buffer`,
    and if a box has the name in another use.
    """
    pieces, number = cut(shape, len(endpoints.boxes)), new_token()
    with ExitStack() as undone:
        for index, endpoint in reversed(list(enumerate(endpoints.boxes))):
            if is_new := create_buffer(endpoint, name, pieces[index], who, deadline):
                undone.callback(_try_to_drop, endpoint, name, who)
            elif not goes_on:
                return endpoint
            if len(pieces) > 1:
                with take_seat(endpoint, name, who, deadline) as seat:
                    shard = CenterShard(index, len(pieces), number)
                    if not is_new:
                        _require_piece(seat, shard, f"{who}: buffer {name!r} of {endpoint}", deadline)
                    number = shard.say(seat.board)
        undone.pop_all()
    return None


def _require_piece(seat: BoxSeat, wanted: CenterShard, where: str, deadline: Deadline) -> None:
    """Raise InputError if the buffer, which an earlier try may have made, is used as something else."""
    found, values = CenterShard.on(seat.board), np.empty(seat.shape.num_elements, np.float32)
    if found is None and not seat.center.read(values, deadline).any() and not values.any():
        return  # its maker has ended, or marks it a moment later
    if found is None or (found.index, found.count) != (wanted.index, wanted.count):
        raise InputError(f"{where} is {found or 'a whole center'}, and not {wanted}; give another name, or other boxes")


def drop_shards(endpoints: Endpoints, name: str, who: str, deadline: Deadline) -> None:
    """Delete each box's part. Raises InputError if a box has none, after the others are deleted."""
    errors = []
    for endpoint in endpoints.boxes:
        try:
            drop_buffer(endpoint, name, who, deadline)
        except SamovarError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def take_shards(
    endpoints: Endpoints, name: str, who: str, deadline: Deadline, index: int | None = None, timeout_s: float = 60.0
) -> BoxSeat:
    """As `take_seat`, in every box; in row `index` of the first, and of the others if it is free there.

    Raises InputError also if the boxes do not hold the shards of one center, in this order.
    """
    with ExitStack() as stack:
        seats: list[BoxSeat] = []
        for endpoint in endpoints.boxes:
            seat = _take(endpoint, name, who, deadline, index, timeout_s, is_first=not seats)
            seats.append(stack.enter_context(seat))
            index = seats[0].member.index
        _require_together(endpoints, name, _looked(seats), who)
        if len(seats) == 1:
            stack.pop_all()
            return seats[0]
        center = ShardedCenter([seat.center for seat in seats])
        stack.callback(center.close)
        board = ShardedBoard([seat.board for seat in seats], [seat.member for seat in seats])
        shape = whole_of([seat.shape for seat in seats])
        # The first box's row is freed last: if it is free, the others are free.
        return BoxSeat(center, board, seats[0].member, shape, stack.pop_all().close)


@dataclass(frozen=True, slots=True)
class BoxView:
    """A center that is only read. `close` ends it."""

    center: SeatCenter
    shape: BufferShape
    close: Callable[[], None]


def view(endpoints: Endpoints, name: str, who: str, deadline: Deadline) -> BoxView:
    """The center of buffer `name`, without a seat. Raises InputError as `take_shards`."""
    looks: list[Look] = []

    def are_marked() -> bool:  # the maker of a shard marks it a moment later
        looks[:] = [look_at(endpoint, name, who, deadline) for endpoint in endpoints.boxes]
        return len(looks) == 1 or all(look.part is not None for look in looks)

    polled(are_marked, Deadline.after(min(_PATIENCE_S, deadline.remaining_s())), _POLL_S)
    _require_together(endpoints, name, looks, who)
    with ExitStack() as stack:
        centers = []
        for endpoint in endpoints.boxes:
            center, close = view_center(endpoint, name, who, deadline)
            stack.callback(close)
            centers.append(center)
        if len(centers) == 1:
            return BoxView(centers[0], looks[0].shape, stack.pop_all().close)
        whole = ShardedCenter(centers)
        stack.callback(whole.close)
        return BoxView(whole, whole_of([look.shape for look in looks]), stack.pop_all().close)


def _take(
    endpoint: Endpoint, name: str, who: str, deadline: Deadline, index: int | None, timeout_s: float, *, is_first: bool
) -> BoxSeat:
    try:
        return take_seat(endpoint, name, who, deadline, index, timeout_s)
    except RankFailed:
        if is_first:
            raise
        return take_seat(endpoint, name, who, deadline, timeout_s=timeout_s)  # the row matters in the first box alone


def _looked(seats: Sequence[BoxSeat]) -> list[Look]:
    patience, waits = Deadline.after(_PATIENCE_S), len(seats) > 1
    return [Look(seat.shape, [], _shard_of(seat, patience, waits=waits)) for seat in seats]


def _require_together(endpoints: Endpoints, name: str, looks: Sequence[Look], who: str) -> None:
    """Whether the boxes hold the center, or its shards in order."""
    count, shards = len(looks), [look.part for look in looks]
    for index, (endpoint, shard) in enumerate(zip(endpoints.boxes, shards, strict=True)):
        wanted, where = f"part {index + 1} of {count}", f"{who}: buffer {name!r} of {endpoint}"
        if shard is None:
            if count > 1:
                raise InputError(f"{where} is a whole center, and not {wanted}; give this box alone, or another buffer")
        elif (shard.index, shard.count) != (index, count):
            boxes = f"the {shard.count} boxes of that center, in its order"
            given = f"not {wanted}" if count > 1 else "no whole center"
            raise InputError(f"{where} is {shard} of a center, and {given}; give --box {boxes}, with commas between")
        elif shards[0] is not None and shard.set_number != shards[0].set_number:
            raise InputError(
                f"{where} is {shard} of another center than {endpoints.boxes[0]} has; give the box of its own"
            )
    first = looks[0].shape
    for endpoint, look in zip(endpoints.boxes, looks, strict=True):
        if look.shape != first and (look is not looks[-1] or not _may_be_last(look.shape, first)):
            raise InputError(
                f"{who}: buffer {name!r} of {endpoint} is cut otherwise than that of {endpoints.boxes[0]} "
                f"({look.shape}, {first}); load the snapshot that was made of it"
            )


def _may_be_last(shape: BufferShape, first: BufferShape) -> bool:
    return shape == replace(first, num_elements=min(shape.num_elements, first.num_elements))


def _shard_of(seat: BoxSeat, patience: Deadline, *, waits: bool) -> CenterShard | None:
    """The maker of a shard marks it a moment later."""
    if waits:
        polled(lambda: CenterShard.on(seat.board) is not None, patience, _POLL_S)
    return CenterShard.on(seat.board)


def _try_to_drop(endpoint: Endpoint, name: str, who: str) -> None:
    """With time of its own: that of the call may be spent."""
    with suppress(SamovarError):
        drop_buffer(endpoint, name, who, Deadline.after(_PATIENCE_S))


def require_fitting(box: str, key_file: Path | None, buffer: str, timeout_s: float, *, joins: bool) -> None:
    """Raises InputError unless each box of --box has this buffer, for a run that `joins`, or none has it."""
    for place in parse_endpoints(box, key_file).boxes:
        there = buffer_names(place, f"--box {box}", Deadline.after(min(timeout_s, _MOST_WAIT_S)))
        if joins and buffer not in there:
            names = ", ".join(there) or "none"
            raise InputError(
                f"--join: {place} has no buffer {buffer!r} (there are: {names}); give --buffer NAME, or begin "
                "without --join"
            )
        if not joins and buffer in there:
            raise InputError(there_already(place, buffer))


def there_already(place: Endpoint, buffer: str) -> str:
    """Why a buffer cannot be made, as a sentence."""
    return (
        f"{place} has a buffer {buffer!r} already; give --join to train with those who use it, --buffer NAME for "
        f"another, or delete it with `{drop_command(Endpoints((place,)), buffer)}`"
    )


def drop_command(places: Endpoints, buffer: str) -> str:
    """The command that deletes a buffer."""
    boxes = ",".join(map(_as_given, places.boxes))
    key_files = [place.key_file for place in places.boxes if place.key_file is not None]
    box = "" if boxes == DEFAULT_BOX else f" --box {boxes}"
    return f"samovar box drop {buffer}{box}" + (f" --key-file {key_files[0]}" if key_files else "")


def _as_given(place: Endpoint) -> str:
    if place.address is None:
        return str(place.name)
    host, port = place.address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def buffer_name(net_name: str) -> str:
    """The net's name, changed so that a buffer can have it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", net_name)[:_MOST_NAME_CHARACTERS].strip("-._") or "net"
