"""`samovar box`: named centers that outlive the runs that train them."""

import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from samovar.box.endpoints import drop_shards, parse_endpoints
from samovar.box.joining import Endpoint, buffer_names, describe, look_at
from samovar.box.local import DEFAULT_BOX, BoxServer
from samovar.box.seats import BufferHost
from samovar.box.serving import Service, ServingConfig
from samovar.cli.command import OPTIONS, OUTPUT, GroupHelpLast, HelpLast, require_place
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.launcher.box_files import TIMEOUT_S, Content, Snapshots, load, saved
from samovar.report.tables import printer, show_table
from samovar.transports.keys import make_key, read_key
from samovar.transports.tcp_listen import Listener, listen, parse_address

KEEP_S, GRACE_S, SNAPSHOT_S = 60.0, 120.0, 60.0
_LONGEST_S = 86_400
_WHO = "samovar box"
_TIMEOUT_S = 30.0
_COLUMNS = ("member", "process", "state", "steps", "samples/s", "loss", "staleness", "waited")
_IS_NUMBER = (False, False, False, True, True, True, True, True)

box_app = typer.Typer(
    cls=GroupHelpLast,
    help="Serve a box: it holds centers that several runs train together, and that outlive them.",
    no_args_is_help=True,
)
Boxes = Annotated[str, OPTIONS("BOX", "The box: its name on this host, or HOST:PORT. Several: with commas.", "--box")]
KeyFile = Annotated[Path | None, OPTIONS("FILE", "The key of a box at HOST:PORT.")]
Timeout = Annotated[float, OPTIONS("SECONDS", "How long all of it may take.")]
Buffer = Annotated[str, typer.Argument(metavar="BUFFER", help="Name of a buffer, as in `samovar box list`.")]


@box_app.command(cls=HelpLast)
def serve(
    box: Annotated[str, OPTIONS("NAME", "Name of the box.", "--box")] = (DEFAULT_BOX),
    keep: Annotated[float, OPTIONS("SECONDS", "How long the memory stays if this server is killed.")] = KEEP_S,
    listen_at: Annotated[
        str | None, OPTIONS("ADDRESS:PORT", "Also listen here for workers on other hosts.", "--listen")
    ] = None,
    key_file: Annotated[
        Path | None, OPTIONS("FILE", "The key that these workers need. A missing file is made.")
    ] = None,
    grace: Annotated[float, OPTIONS("SECONDS", "How long a worker on another host may lose its connection.")] = GRACE_S,
    box_snapshot: Annotated[
        Path | None, OPTIONS("FOLDER", "Save the buffers here, and load them at the start.")
    ] = None,
    snapshot_every: Annotated[float, OPTIONS("SECONDS", "How often they are saved.")] = SNAPSHOT_S,
) -> None:
    """Hold buffers until Ctrl-C. Workers of this user on this host find the box by its name."""
    _require_seconds({"--keep": keep, "--grace": grace, "--snapshot-every": snapshot_every})
    if (listen_at is None) != (key_file is None):
        raise InputError("--listen and --key-file go together: nobody comes in from the network without a key")
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # which is nohup's
            signal.signal(number, lambda number, _frame: stopped.append(number))
    server = BoxServer(box, keep)
    keeps = server.was_held  # not what only a start that fails has loaded
    try:
        snapshots: AbstractContextManager[object] = nullcontext()
        if box_snapshot is not None:
            snapshots = Snapshots(server.buffers, box_snapshot, snapshot_every, partial(typer.echo, err=True))
        with snapshots, _network(server, listen_at, key_file, grace) as (place, service):
            typer.echo(_greeting(server, box, place))
            keeps = True
            server.serve(lambda: _is_over(stopped, service))
    except BaseException:
        server.close(keeps_memory=keeps and bool(server.buffers.names()))
        raise
    server.close()
    typer.echo(f"box {box!r} has ended")


def _is_over(stopped: list[int], service: Service | None) -> bool:
    """Asked now and then; gives up the places of remote members that have been away for long."""
    if service is not None:
        service.expire()
    return bool(stopped)


@contextmanager
def _network(
    server: BoxServer, listen_at: str | None, key_file: Path | None, grace_s: float
) -> Iterator[tuple[str, Service | None]]:
    """Serves members of other hosts meanwhile; where, for people."""
    if listen_at is None or key_file is None:
        yield "", None
        return
    if (place := parse_address(listen_at)) is None:
        raise InputError(f"--listen {listen_at}: give an address of this host and a port, such as 127.0.0.1:5600")
    make_key(key_file)
    service = Service(BufferHost(server.buffers), ServingConfig(absent_s=grace_s))
    listener = Listener(listen(*place), read_key(key_file), service.accept)
    try:
        yield f"{listener.address[0]}:{listener.address[1]}", service
    finally:
        listener.close()
        service.close()


def _greeting(server: BoxServer, box: str, place: str) -> str:
    lines = [f"box {box!r} is served for this user's programs on this host; Ctrl-C ends it and frees its memory"]
    if place:
        lines.append(f"members of other hosts come in at {place}")
    if server.was_held:
        lines.append(f"kept from a server that was killed: {', '.join(server.buffers.names()) or 'nothing'}")
    return "\n".join(lines)


def _require_seconds(given: Mapping[str, float]) -> None:
    for flag, seconds in given.items():
        if not 0 < seconds <= _LONGEST_S:
            raise InputError(f"{flag} {seconds:g}: give more than 0 and at most {_LONGEST_S:,} seconds")


@box_app.command("list", cls=HelpLast)
def list_buffers(
    box: Boxes = DEFAULT_BOX,
    key_file: KeyFile = None,
    as_json: Annotated[bool, OUTPUT("", "Print a list of buffers as JSON.", "--json")] = False,
) -> None:
    """Show the buffers of a box, and the workers that train there."""
    places = parse_endpoints(box, key_file).boxes
    found = {place: _described(place) for place in places}
    if as_json:
        several = [{"box": str(place), **each} for place, described in found.items() for each in described]
        typer.echo(json.dumps(several if len(places) > 1 else found[places[0]], indent=2))
        return
    for place, described in found.items():
        if not described:
            typer.echo(f"{place} holds no buffers")
        elif len(places) > 1:
            typer.echo(f"{place} holds")
        _show(described)


def _described(place: Endpoint) -> list[dict[str, Any]]:
    deadline = Deadline.after(_TIMEOUT_S)
    found = []
    for name in buffer_names(place, _WHO, deadline):
        try:
            found.append(describe(name, look_at(place, name, _WHO, deadline)))
        except InputError:
            if name in buffer_names(place, _WHO, deadline):  # else it was dropped meanwhile
                raise
    return found


def _show(described: Sequence[dict[str, Any]]) -> None:
    for each in described:
        # Not who filled the buffer, say, and left without a step.
        members = [member for member in each["members"] if member["steps"] or _state(member) != "left"]
        heading = _heading(each)
        if members:
            show_table(printer(), heading, _COLUMNS, [_row(member) for member in members], _IS_NUMBER)
        else:
            typer.echo(heading)


def _heading(described: dict[str, Any]) -> str:
    size = f"{described['num_elements']:,} elements, {described['num_elements'] * 4 / 1e6:,.1f} MB"
    extra = (", with velocity" if described["with_velocity"] else "") + (
        "" if described["with_locks"] else ", without locks"
    )
    alive = sum(member["is_alive"] for member in described["members"])
    part = "" if described["part"] is None else f"part {described['part']} of {described['parts']}, "
    return f"{described['name']}: {part}{size}{extra}; {alive} of at most {described['max_members']} members alive"


def _row(member: dict[str, Any]) -> list[str]:
    staleness = f"{_number(member['staleness_mean'], '.1f')} / {member['staleness_max']}"
    return [
        *(f"{member['member']}.{member['incarnation']}", _process(member), _state(member)),
        *(f"{member['steps']:,}", _number(member["samples_per_s"], ",.0f"), _number(member["loss"], ".4f")),
        *(staleness, f"{_number(member['lock_wait_s'], '.1f')} s"),
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _process(member: dict[str, Any]) -> str:
    """Its number, and whose: "-" is nobody's any more."""
    process = str(member["process_id"] or "-")
    return f"{process} at {member['host']}" if member["host"] else process


def _state(member: dict[str, Any]) -> str:
    if member["finished"]:
        return "finished"
    if member["stopped"]:
        return "stopped"
    if member["is_alive"]:
        return "works"
    if member["away"]:
        return "away" if member["process_id"] else "gone"
    if member["process_id"]:
        return "died"
    return "gone" if member["host"] else "left"


@box_app.command(cls=HelpLast)
def snapshot(
    buffer: Buffer,
    out: Annotated[Path, OPTIONS("FILE", "File to write (safetensors).")],
    box: Boxes = DEFAULT_BOX,
    key_file: KeyFile = None,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Write a buffer to a file, also while workers train there."""
    _require_seconds({"--timeout": timeout})
    require_place("--out", out, Content.read)
    content = saved(parse_endpoints(box, key_file), buffer, timeout)
    try:
        mark = content.write(out)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written: {error.strerror}; give a file elsewhere") from error
    typer.echo(f"{out}: {content}, {mark.size_bytes:,} bytes, sha256 {mark.sha256}")


@box_app.command("load", cls=HelpLast)
def load_files(
    buffer: Buffer,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="A file of `samovar box snapshot`, or any safetensors file with a float32 `center`."
        ),
    ],
    box: Boxes = DEFAULT_BOX,
    key_file: KeyFile = None,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Fill a buffer from a file, while no worker trains there. A missing buffer is made.

    With several boxes the center is divided among them. Several files are the parts of one center.
    """
    _require_seconds({"--timeout": timeout})
    content = Content.read_all(files)
    is_new = load(content, parse_endpoints(box, key_file), buffer, timeout)
    typer.echo(f"{buffer}: {'made and ' if is_new else ''}filled with {content} of {' and '.join(map(str, files))}")


@box_app.command(cls=HelpLast)
def drop(buffer: Buffer, box: Boxes = DEFAULT_BOX, key_file: KeyFile = None) -> None:
    """Delete a buffer. Workers that train there keep it until they end."""
    drop_shards(parse_endpoints(box, key_file), buffer, _WHO, Deadline.after(_TIMEOUT_S))
    typer.echo(f"{buffer}: dropped")
