"""`samovar box`: named centers that outlive the runs that train them."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import numpy as np
import rich.box
import rich.console
import rich.table
import typer

from samovar.box.buffers import describe
from samovar.box.host import BufferHost
from samovar.box.local import DEFAULT_BOX, LocalBox
from samovar.box.mapped import MappedCenter
from samovar.box.server import BoxServer
from samovar.box.serving import Service, ServingConfig
from samovar.checkpoint.arrays import Array, chunks
from samovar.core.clock import Deadline
from samovar.core.durable import publish_file
from samovar.core.errors import InputError
from samovar.transports.keys import make_key, read_key
from samovar.transports.tcp_listen import Listener, listen

KEEP_S = 60.0
_TIMEOUT_S = 30.0
_HIGHEST_PORT = 65_535
_COLUMNS = ("member", "process", "state", "steps", "samples/s", "loss", "staleness", "waited")

box_app = typer.Typer(help="Serve named centers that workers of several runs change together.", no_args_is_help=True)
Box = Annotated[str, typer.Option("--box", metavar="NAME", help="Which of this user's boxes on this host.")]
Buffer = Annotated[str, typer.Argument(help="Name of a buffer, as `samovar box list` shows it.")]


@box_app.command()
def serve(
    box: Box = DEFAULT_BOX,
    keep: Annotated[float, typer.Option(help="Seconds that the memory waits if this server is killed.")] = KEEP_S,
    listen_at: Annotated[
        str | None, typer.Option("--listen", metavar="ADDRESS:PORT", help="Also take in members of other hosts there.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="Key that those members must have; made where there is none.")
    ] = None,
) -> None:
    """Hold named buffers for this user's programs until Ctrl-C; members already at work need no server."""
    if not 0 < keep <= 86_400:
        raise InputError(f"--keep {keep:g}: give more than 0 and at most 86,400 seconds")
    if (listen_at is None) != (key_file is None):
        raise InputError("--listen and --key-file go together: nobody comes in from the network without a key")
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: _note(stopped, number, _frame))
    server = BoxServer(box, keep)
    try:
        with _network(server, listen_at, key_file) as (place, service):
            typer.echo(_greeting(server, box, place))
            server.serve(lambda: _is_over(stopped, service))
    finally:
        server.close()
    typer.echo(f"box {box!r} has ended")


def _note(stopped: list[int], number: int, _frame: FrameType | None) -> None:
    stopped.append(number)


def _is_over(stopped: list[int], service: Service | None) -> bool:
    """Asked now and then; gives up the places of remote members that have been away for long."""
    if service is not None:
        service.expire()
    return bool(stopped)


@contextmanager
def _network(server: BoxServer, listen_at: str | None, key_file: Path | None) -> Iterator[tuple[str, Service | None]]:
    """Serves members of other hosts meanwhile; where, for people."""
    if listen_at is None or key_file is None:
        yield "", None
        return
    address, colon, port = listen_at.rpartition(":")
    if not colon or not port.isdecimal() or not port.isascii() or int(port) > _HIGHEST_PORT:
        raise InputError(
            f"--listen {listen_at}: give an address of this host and a port up to 65535, such as 127.0.0.1:5600"
        )
    if not key_file.exists():
        make_key(key_file)
    service = Service(BufferHost(server.buffers), ServingConfig())
    listener = Listener(listen(address.strip("[]"), int(port)), read_key(key_file), service.accept)
    try:
        yield f"{listener.address[0]}:{listener.address[1]}", service
    finally:
        listener.close()
        service.close()


def _greeting(server: BoxServer, box: str, place: str) -> str:
    lines = [f"box {box!r} is served for this user's programs on this host; Ctrl-C ends it and frees its memory"]
    if place:
        lines.append(f"members of other hosts come in at {place}")
    if server.was_kept:
        lines.append(f"kept from a server that was killed: {', '.join(server.buffers.names()) or 'nothing'}")
    return "\n".join(lines)


@box_app.command("list")
def list_buffers(
    box: Box = DEFAULT_BOX,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show buffers, their members, speeds and staleness."""
    described = _described(LocalBox(box))
    if as_json:
        typer.echo(json.dumps(described, indent=2))
        return
    if not described:
        typer.echo(f"box {box!r} holds no buffers")
    for each in described:
        typer.echo(_heading(each))
        if each["members"]:
            rich.console.Console().print(_table(each["members"]))


def _described(box: LocalBox) -> list[dict[str, Any]]:
    deadline = Deadline.after(_TIMEOUT_S)
    found = []
    for name in box.names(deadline):
        buffer = box.attach(name, deadline)
        try:
            found.append(describe(name, buffer))
        finally:
            buffer.close()
    return found


def _heading(described: dict[str, Any]) -> str:
    size = f"{described['num_elements']:,} elements, {described['num_elements'] * 4 / 1e6:,.1f} MB"
    extra = (", with velocity" if described["with_velocity"] else "") + (
        "" if described["with_locks"] else ", without locks"
    )
    alive = sum(member["is_alive"] for member in described["members"])
    return f"{described['name']}: {size}{extra}; {alive} of at most {described['max_members']} members alive"


def _table(members: list[dict[str, Any]]) -> rich.table.Table:
    table = rich.table.Table(*_COLUMNS, box=rich.box.SIMPLE)
    for member in members:
        loss = "-" if member["loss"] is None else f"{member['loss']:.4f}"
        staleness = f"{member['staleness_mean']:.1f}, at most {member['staleness_max']}"
        table.add_row(
            *(f"{member['member']}.{member['incarnation']}", str(member["process_id"] or "-"), _state(member)),
            *(f"{member['steps']:,}", f"{member['samples_per_s']:,.0f}", loss, staleness),
            f"{member['lock_wait_s']:.1f} s",
        )
    return table


def _state(member: dict[str, Any]) -> str:
    if member["finished"]:
        return "finished"
    if member["stopped"]:
        return "stopped"
    if member["is_alive"]:
        return "works"
    return "died" if member["process_id"] else "left"


@box_app.command()
def snapshot(
    buffer: Buffer,
    out: Annotated[Path, typer.Option(help="File to write (safetensors).")],
    box: Box = DEFAULT_BOX,
) -> None:
    """Write a buffer to a file while others change it: each chunk whole, with its version."""
    deadline = Deadline.after(_TIMEOUT_S)
    attached = LocalBox(box).attach(buffer, deadline)
    try:
        arrays = _arrays(MappedCenter(attached.center), deadline)
    finally:
        attached.close()
    try:
        mark = publish_file(out, chunks(arrays))
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written: {error.strerror}; give a file elsewhere") from error
    typer.echo(f"{out}: {arrays['center'].size:,} elements, {mark.size_bytes:,} bytes, sha256 {mark.sha256}")


def _arrays(center: MappedCenter, deadline: Deadline) -> dict[str, Array]:
    values = np.empty(center.num_elements, np.float32)
    arrays: dict[str, Array] = {"versions": center.read(values, deadline), "center": values}
    if center.with_velocity:
        arrays["velocity"] = np.empty_like(values)
        center.read_velocity(arrays["velocity"], deadline)
    return arrays


@box_app.command()
def drop(buffer: Buffer, box: Box = DEFAULT_BOX) -> None:
    """Delete a buffer; members at work keep theirs until they end."""
    LocalBox(box).drop(buffer, Deadline.after(_TIMEOUT_S))
    typer.echo(f"{buffer}: dropped")
