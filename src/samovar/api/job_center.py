"""The center that a job makes for itself: ranks of the first host map its memory, the others reach it over the network.

On several hosts rank 0 starts a process that serves it (`samovar.box.job_server`), and ends with the job.
"""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.api.process_group import Home, ProcessGroup
from samovar.box.board import Board, create_board
from samovar.box.buffers import Buffer, BufferShape, new_token
from samovar.box.job_server import BUFFER
from samovar.box.joining import BoxPlace, BoxSeat, mapped_seat, take_seat
from samovar.box.mapped import create_center
from samovar.collectives.records import digest_record
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.transports.join import join_files, offer_files
from samovar.transports.keys import make_key, read_key
from samovar.transports.tcp_listen import address_of, listen

_SECRET_BYTES = 16
_TABLE_FIELDS = 4


class RankTable:
    """All ranks of the job show each other a row of numbers; each time, all wait for all."""

    def __init__(self, team: ProcessGroup, deadline: Callable[[], Deadline]) -> None:
        self._records = team.collectives.records(_TABLE_FIELDS)
        self.deadline = deadline

    def show(self, *row: float) -> npt.NDArray[np.float64]:
        self._records.post([*row, *(0.0,) * (_TABLE_FIELDS - len(row))])
        return self._records.collect(self.deadline())

    def bytes_of_first(self) -> bytes:
        """What rank 0 shows as the record of a digest."""
        return np.array(self.show()[0], dtype=">u4").tobytes()


def own_seat(table: RankTable, team: ProcessGroup, shape: BufferShape) -> BoxSeat:
    """This rank's, in the row of its number; rank 0 makes the center. All ranks call it.

    Raises InputError where the key is missing, or the center has no place in memory.
    """
    rank, everybody = team.group.rank, tuple(range(team.group.world_size))
    home = team.home or Home(everybody)
    is_served = home.ranks != everybody
    if rank == 0:
        return _made(table, home, shape, is_served=is_served)
    secret = table.bytes_of_first()
    place = _told_place(table, home) if is_served else None
    if rank in home.ranks:
        seat = _seat_in_memory(join_files(secret, 2 + is_served, table.deadline()), rank)
    else:
        assert place is not None, "who is elsewhere is told the place"
        deadline = table.deadline()
        seat = take_seat(place, BUFFER, f"rank {rank}", deadline, rank, deadline.remaining_s())
    table.show()
    return seat


def _made(table: RankTable, home: Home, shape: BufferShape, *, is_served: bool) -> BoxSeat:
    """Rank 0's."""
    secret = secrets.token_bytes(_SECRET_BYTES)
    with ExitStack() as unmade:
        files = [create_center(**asdict(shape))]
        unmade.callback(os.close, files[0])
        files.append(create_board(shape.max_members))
        unmade.callback(os.close, files[1])
        address, port = _served(home, files, unmade) if is_served else (b"", 0)
        with offer_files(secret, tuple(files)):
            table.show(*digest_record(secret))
            if is_served:
                table.show(*digest_record(address))
                table.show(port)
            table.show()  # all have their seats
        unmade.pop_all()
    return _seat_in_memory(files, 0)


def _served(home: Home, files: list[int], unmade: ExitStack) -> tuple[bytes, int]:
    """Where the center is served; `files` get the end of a pipe that the ranks of this host hold while they live."""
    assert home.address is not None
    assert home.key_file is not None
    if not home.key_file.exists():
        make_key(home.key_file)
    read_key(home.key_file)
    Board(files[1]).claim_token(new_token())
    pipe, held = os.pipe()
    files.append(held)
    unmade.callback(os.close, held)
    try:
        with listen(home.address) as listening:
            address, port = address_of(listening)
            _start_server(home.key_file, listening, (*files[:2], pipe))
    finally:
        os.close(pipe)
    sys.stderr.write(f"samovar: the center lies on rank 0's host; others reach it at {address}:{port}, encrypted\n")
    return _packed(address), port


def _start_server(key_file: Path, listening: socket.socket, files: tuple[int, ...]) -> None:
    """It outlives this process where others go on, so that it has a session of its own and writes nowhere."""
    descriptors = (listening.fileno(), *files)
    command = [sys.executable, "-P", "-m", "samovar.box.job_server", str(key_file.resolve()), *map(str, descriptors)]
    try:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=descriptors,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise InputError(f"the process that serves the center cannot be started: {error}") from error


def _told_place(table: RankTable, home: Home) -> BoxPlace:
    address = IPv6Address(table.bytes_of_first())
    port = int(table.show()[0][0])
    return BoxPlace(None, (str(address.ipv4_mapped or address), port), home.key_file)


def _packed(address: str) -> bytes:
    """16 bytes."""
    found = ip_address(address.partition("%")[0])
    return (IPv6Address(f"::ffff:{found}") if isinstance(found, IPv4Address) else found).packed


def _seat_in_memory(files: list[int], rank: int) -> BoxSeat:
    """Takes the descriptors over: center, board, and where the center is served the pipe, held as long as the seat."""
    center, board, *held = files
    try:
        with Buffer(center, board) as buffer:
            seat = mapped_seat(buffer, rank)
    except BaseException:
        _close(held)
        raise

    def leave() -> None:
        try:
            seat.close()
        finally:
            _close(held)

    return BoxSeat(seat.center, seat.board, seat.member, seat.shape, leave)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
