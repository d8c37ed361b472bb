"""What can be said about a run at a box before it starts: whether boxes and buffer are what the flags say."""

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
    """`config` with the name of its buffer, which the box has or has not, as --join says; raises InputError."""
    buffer = config.buffer or buffer_name(net_name)
    for place in parse_endpoints(box, config.key_file).boxes:
        there = buffer_names(place, f"--box {box}", Deadline.after(min(config.timeout_s, _MOST_WAIT_S)))
        if config.join and buffer not in there:
            names = ", ".join(there) or "none"
            raise InputError(
                f"--join: {place} has no buffer {buffer!r}; there are: {names}; give --buffer NAME, or begin without "
                "--join"
            )
        if not config.join and buffer in there:
            raise InputError(there_already(place, buffer))
    return replace(config, buffer=buffer)


def there_already(place: Endpoint, buffer: str) -> str:
    """That a buffer cannot be made, in words."""
    return (
        f"{place} has a buffer {buffer!r} already; give --join to train with those who use it, --buffer NAME for "
        f"another, or delete it with `{drop_command(Endpoints((place,)), buffer)}`"
    )


def drop_command(places: Endpoints, buffer: str) -> str:
    """What deletes a buffer."""
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
    """The net's, made one that a buffer can have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", net_name)[:_MOST_NAME_CHARACTERS].strip("-._") or "net"
