"""Checks of a run at a box before it starts: whether the boxes and the buffer fit the flags."""

import re
from dataclasses import replace
from typing import Final

from samovar.box.endpoints import Endpoints, parse_endpoints
from samovar.box.joining import Endpoint, buffer_names
from samovar.box.local import DEFAULT_BOX
from samovar.config import RunConfig
from samovar.core.clock import Deadline
from samovar.core.errors import InputError

_MOST_NAME_CHARACTERS: Final = 64
_MOST_WAIT_S: Final = 10.0  # before anything has begun


def at_box(config: RunConfig, box: str, net_name: str) -> RunConfig:
    """`config` with the name of its buffer. With --join the box must have it, else it must not; raises InputError."""
    buffer = config.buffer or buffer_name(net_name)
    for place in parse_endpoints(box, config.key_file).boxes:
        there = buffer_names(place, f"--box {box}", Deadline.after(min(config.timeout_s, _MOST_WAIT_S)))
        if config.join and buffer not in there:
            names = ", ".join(there) or "none"
            raise InputError(
                f"--join: {place} has no buffer {buffer!r} (there are: {names}); give --buffer NAME, or begin "
                "without --join"
            )
        if not config.join and buffer in there:
            raise InputError(there_already(place, buffer))
    return replace(config, buffer=buffer)


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
