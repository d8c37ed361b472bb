"""What can be said about a run at a box before it starts: whether the box and its buffer are what the flags say."""

import re
from dataclasses import replace
from typing import Final

from samovar.box.joining import BoxPlace, buffer_names, parse_place
from samovar.box.local import DEFAULT_BOX
from samovar.config import RunConfig
from samovar.core.clock import Deadline
from samovar.core.errors import InputError

_MOST_NAME_CHARACTERS: Final = 64
_MOST_WAIT_S: Final = 10.0  # before anything has begun


def at_box(config: RunConfig, box: str, net_name: str) -> RunConfig:
    """`config` with the name of its buffer, which the box has or has not, as --join says; raises InputError."""
    place = parse_place(box, config.key_file)
    buffer = config.buffer or buffer_name(net_name)
    there = buffer_names(place, f"--box {box}", Deadline.after(min(config.timeout_s, _MOST_WAIT_S)))
    if config.join and buffer not in there:
        names = ", ".join(there) or "none"
        raise InputError(
            f"--join: {place} has no buffer {buffer!r}; there are: {names}; give --buffer NAME, or begin without --join"
        )
    if not config.join and buffer in there:
        raise InputError(there_already(place, buffer))
    return replace(config, buffer=buffer)


def there_already(place: BoxPlace, buffer: str) -> str:
    """That a buffer cannot be made, in words."""
    return (
        f"{place} has a buffer {buffer!r} already; give --join to train with those who use it, --buffer NAME for "
        f"another, or delete it with `{drop_command(place, buffer)}`"
    )


def drop_command(place: BoxPlace, buffer: str) -> str:
    """What deletes a buffer."""
    if place.address is not None:
        host, port = place.address
        host = f"[{host}]" if ":" in host else host
        return f"samovar box drop {buffer} --box {host}:{port} --key-file {place.key_file}"
    return f"samovar box drop {buffer}" + ("" if place.name == DEFAULT_BOX else f" --box {place.name}")


def buffer_name(net_name: str) -> str:
    """The net's, made one that a buffer can have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", net_name)[:_MOST_NAME_CHARACTERS].strip("-._") or "net"
