"""A buffer to a file and back, in one box or cut over several."""

from typing import Final

from samovar.box.buffers import BufferShape
from samovar.box.endpoints import Endpoints, create_shards, take_shards
from samovar.box.joining import Endpoint, Look, buffer_names, create_buffer, look_at, read_buffer, take_seat
from samovar.box.shards import CenterShard, whole_of
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.launcher.box_content import TIMEOUT_S, Content

_WHO: Final = "samovar box"


def saved(places: Endpoints, name: str) -> Content:
    """What the boxes have of buffer `name`: of one whatever it has, of several the whole center.

    Raises InputError where these are not the parts of one center, or a box has none.
    """
    deadline = Deadline.after(TIMEOUT_S)
    found = {
        f"buffer {name!r} of {place}": Content.of(*read_buffer(place, name, _WHO, deadline)) for place in places.boxes
    }
    return Content.joined(found)


def load(content: Content, places: Endpoints, name: str) -> bool:
    """Put it into buffer `name`, which is made where there is none; whether it was made.

    A whole center is cut over several boxes, a part goes into one. Raises InputError where there is another buffer of
    this name, or somebody is at work there.
    """
    deadline = Deadline.after(TIMEOUT_S)
    if content.part is not None and len(places.boxes) > 1:
        raise InputError(
            f"{content.part} of a center goes into one box, not {len(places.boxes)}; give the files of all "
            f"{content.part.count} parts, or one box"
        )
    is_new = _make(content, places, name, deadline)
    _check_free(content, places, name, deadline, is_new=is_new)
    if len(places.boxes) > 1:
        seat = take_shards(places, name, _WHO, deadline)
    else:
        seat = take_seat(places.boxes[0], name, _WHO, deadline)
    with seat:
        content.fill(seat, deadline)
    return is_new


def _make(content: Content, places: Endpoints, name: str, deadline: Deadline) -> bool:
    """Whether the buffer, or its parts, were made by this call; InputError where some boxes alone have one."""
    there = [place for place in places.boxes if name in buffer_names(place, _WHO, deadline)]
    if len(places.boxes) == 1:
        return not there and create_buffer(places.boxes[0], name, content.shape, _WHO, deadline)
    if 0 < len(there) < len(places.boxes):
        raise InputError(f"{Endpoints(tuple(there))} has a buffer {name!r}, the others have none; drop it first")
    return not there and create_shards(places, name, content.shape, _WHO, deadline) is None


def _check_free(content: Content, places: Endpoints, name: str, deadline: Deadline, *, is_new: bool) -> None:
    found = {place: look_at(place, name, _WHO, deadline) for place in places.boxes}
    where, shape = f"buffer {name!r} of {places}", whole_of([look.shape for look in found.values()])
    if (shape.num_elements, shape.with_velocity) != (content.shape.num_elements, content.shape.with_velocity):
        raise InputError(
            f"{where} has {_words_of(shape)}, and the file {_words_of(content.shape)}; drop it first, or load into "
            "another"
        )
    if len(found) == 1 and not is_new:
        _check_part(next(iter(found.values())).part, content.part, where)
    for place, look in found.items():
        _check_idle(place, look, name)


def _check_part(there: CenterShard | None, given: CenterShard | None, where: str) -> None:
    """A part is no whole center, and no other part, even where it has as many elements."""
    if (there and (there.index, there.count)) == (given and (given.index, given.count)):
        return
    has, gets = (f"{part} of a center" if part else "a whole center" for part in (there, given))
    raise InputError(f"{where} is {has}, and the file {gets}; drop it first, or give --box all boxes of that center")


def _check_idle(place: Endpoint, look: Look, name: str) -> None:
    if alive := [str(row.member.index) for row in look.rows if row.is_alive]:
        raise InputError(f"buffer {name!r} of {place}: members {', '.join(alive)} are at work there; end them first")


def _words_of(shape: BufferShape) -> str:
    return f"{shape.num_elements:,} elements {'with' if shape.with_velocity else 'without'} velocity"
