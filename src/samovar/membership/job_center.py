"""The center that a job makes for itself, in memory that ranks of the first host map, or in windows of a library.

In memory, other ranks reach it over the network: rank 0 starts a process that serves it (`samovar.box.job_server`) and
ends with the job. In windows (MPI, GASPI) it is with rank 0, and the others reach it without a server.
"""

import os
import secrets
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import numpy as np

from samovar.box.board import NUM_WORDS, PROGRESS_BYTES, Board, Member, MemberProgress, Row, create_board
from samovar.box.buffers import Buffer, BufferShape, new_token
from samovar.box.job_server import BUFFER
from samovar.box.joining import BoxSeat, Endpoint, mapped_seat, take_seat
from samovar.box.mapped import create_center
from samovar.box.window_center import WindowCenter
from samovar.collectives.engine import digest_record
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, RankFailed
from samovar.membership.ranks import JobRanks, Ranks
from samovar.membership.session import KeptCenter, OwnCenter
from samovar.transports.base import Window
from samovar.transports.keys import make_key, read_key
from samovar.transports.looking import LookingTransport
from samovar.transports.tcp_listen import address_of, listen
from samovar.transports.unix_sockets import join_files, offer_files

_SECRET_BYTES = 16


@dataclass(frozen=True, slots=True)
class Home:
    """The place of a job's center: with rank 0, in memory that the `ranks` of its host map.

    Ranks of other hosts reach it at `address`. `key_file` names the job's key on each host. If the launcher starts
    ranks again, it keeps the center: `kept`. If a library has `windows` of all ranks, the center is in them.
    """

    ranks: tuple[int, ...]
    address: str | None = None
    key_file: Path | None = None
    kept: KeptCenter | None = None
    windows: LookingTransport | None = None


class JobCenter(OwnCenter):
    """A `samovar.membership.session.CenterPlace`: every rank takes a seat, in the row of its number."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def seat(self, ranks: JobRanks, shape: BufferShape, _deadline: Deadline, *, joins: bool) -> BoxSeat:
        """Raises InputError if the key is missing, or the center does not fit in memory."""
        assert not joins, "a job joins a box"
        home, rank = self._home, ranks.rank
        is_served = len(home.ranks) != ranks.world_size
        if rank == 0:
            return _made(ranks, home, shape, is_served=is_served)
        secret = ranks.bytes_of_first()
        place = _told_place(ranks, home) if is_served else None
        if rank in home.ranks:
            seat = _seat_in_memory(join_files(secret, 2 + is_served, ranks.deadline()), rank)
        else:
            assert place is not None, "ranks of other hosts get the place"
            deadline = ranks.deadline()
            seat = take_seat(place, BUFFER, f"rank {rank}", deadline, rank, deadline.remaining_s())
        ranks.show()
        return seat


def _made(ranks: JobRanks, home: Home, shape: BufferShape, *, is_served: bool) -> BoxSeat:
    """Rank 0's."""
    secret = secrets.token_bytes(_SECRET_BYTES)
    with ExitStack() as unmade:
        files = [create_center(**asdict(shape))]
        unmade.callback(os.close, files[0])
        files.append(create_board(shape.max_members))
        unmade.callback(os.close, files[1])
        address, port = _served(home, files, unmade) if is_served else (b"", 0)
        with offer_files(secret, tuple(files)):
            ranks.show(*digest_record(secret))
            if is_served:
                ranks.show(*digest_record(address))
                ranks.show(port)
            ranks.show()  # all have their seats
        unmade.pop_all()
    return _seat_in_memory(files, 0)


def _served(home: Home, files: list[int], unmade: ExitStack) -> tuple[bytes, int]:
    """Serve the center, and return where; `files` get the end of a pipe that this host's ranks hold while they live."""
    assert home.address is not None
    assert home.key_file is not None
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
    sys.stderr.write(f"samovar: the center is on rank 0's host; others reach it at {address}:{port}, encrypted\n")
    return _packed(address), port


def _start_server(key_file: Path, listening: socket.socket, files: tuple[int, ...]) -> None:
    """Start it in its own session, without output: it outlives this process if other ranks continue."""
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


def _told_place(ranks: JobRanks, home: Home) -> Endpoint:
    address = IPv6Address(ranks.bytes_of_first())
    port = int(ranks.show()[0][0])
    return Endpoint(None, (str(address.ipv4_mapped or address), port), home.key_file)


def _packed(address: str) -> bytes:
    """16 bytes."""
    found = ip_address(address.partition("%")[0])
    return (IPv6Address(f"::ffff:{found}") if isinstance(found, IPv4Address) else found).packed


def _seat_in_memory(files: list[int], rank: int) -> BoxSeat:
    """Takes over the descriptors: center, board, and the pipe of a served center, which is held as long as the seat."""
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


_FIRST_LIFE = 1
_WORD_BYTES = 8
_HOST = 0  # the rank with the words
_CHECK = struct.Struct("<Q")
_READ_AGAIN_S = 0.001


class WindowsCenter(OwnCenter):
    """A `samovar.membership.session.CenterPlace`: every rank takes a seat, in the row of its number.

    A rank that dies inside a chunk of the center holds its lock; the others end with an error that names it.
    """

    def __init__(self, transport: LookingTransport) -> None:
        self._transport = transport

    def seat(self, ranks: Ranks, shape: BufferShape, _deadline: Deadline, *, joins: bool) -> BoxSeat:
        """All ranks take theirs together."""
        assert not joins, "a job joins a box"
        center = WindowCenter(
            self._transport, shape.num_elements, with_velocity=shape.with_velocity, with_locks=shape.with_locks
        )
        board = WindowBoard(self._transport)
        return BoxSeat(center, board, Member(ranks.rank, _FIRST_LIFE), shape, center.close)


class WindowBoard:
    """A `samovar.box.board.Rows`: a rank's row is in its own memory, and the words are in that of rank 0.

    A row ends with a checksum. A rank that reads a row while it is written reads it again.
    """

    def __init__(self, transport: LookingTransport) -> None:
        self.max_members = transport.group.world_size
        self._rank = transport.group.rank
        self._lost: Callable[[int], str | None] = transport.lost
        num_bytes = NUM_WORDS * _WORD_BYTES + PROGRESS_BYTES + _CHECK.size
        self._window: Window = transport.open_window("board", num_bytes, 0)
        self._seen = [MemberProgress()] * self.max_members
        self.post(Member(self._rank, _FIRST_LIFE), MemberProgress())

    def row(self, index: int) -> Row:
        is_alive = index == self._rank or self._lost(index) is None
        if is_alive:
            try:
                self._seen[index] = self._read(index)
            except RankFailed:
                is_alive = False
        return Row(Member(index, _FIRST_LIFE), int(is_alive), is_alive, self._seen[index])

    def rows(self) -> list[Row]:
        return [self.row(index) for index in range(self.max_members)]

    def post(self, member: Member, progress: MemberProgress) -> None:
        assert member.index == self._rank, member
        data = progress.pack()
        row = np.frombuffer(data + _CHECK.pack(zlib.crc32(data)), np.uint8)
        self._window.put(self._rank, NUM_WORDS * _WORD_BYTES, row)

    def word(self, index: int) -> int:
        return self._window.fetch_add(_HOST, index * _WORD_BYTES, 0)

    def set_word(self, index: int, value: int) -> None:
        before = self.word(index)
        while (found := self._window.compare_swap(_HOST, index * _WORD_BYTES, before, value)) != before:
            before = found

    def claim_word(self, index: int, value: int) -> int:
        return self._window.compare_swap(_HOST, index * _WORD_BYTES, 0, value) or value

    def _read(self, index: int) -> MemberProgress:
        """The row, or what this rank saw of it last if its writer was stopped in the middle."""
        row = np.empty(PROGRESS_BYTES + _CHECK.size, np.uint8)
        for _ in range(10):
            self._window.get(index, NUM_WORDS * _WORD_BYTES, row)
            data, (check,) = row[:PROGRESS_BYTES].tobytes(), _CHECK.unpack(row[PROGRESS_BYTES:].tobytes())
            if zlib.crc32(data) == check:
                return MemberProgress.unpack(data)
            time.sleep(_READ_AGAIN_S)
        return self._seen[index]
