"""One side of `remote.py`: the box (rank 0) or its member (rank 1), which are the two ranks of a gloo group as well.

For each line SIDE of its input a process does its part. The member answers with the seconds that it took, and both, at
the next line, with those that they computed meanwhile.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from turns import answer

from samovar import _native
from samovar.box.board import Board, Member, create_board
from samovar.box.host import MappedSeat
from samovar.box.mapped import MappedCenter, create_center
from samovar.box.remote import BoxAddress, RemoteCenter
from samovar.box.serving import Service, ServingConfig
from samovar.core.clock import Deadline
from samovar.transports.keys import read_key
from samovar.transports.secure import Channel, connect
from samovar.transports.tcp_listen import Listener, listen

TIMEOUT_S = 120.0
BOX, MEMBER = range(2)


def in_time() -> Deadline:
    return Deadline.after(TIMEOUT_S)


class OneCenter:
    """See `samovar.box.serving.Host`."""

    def __init__(self, num_elements: int) -> None:
        self._num_elements = num_elements
        self._center, self._board = create_center(num_elements), Board(create_board())

    def attach(self, _name: str, _member: Member) -> MappedSeat:
        member = self._board.join()
        answers = np.zeros(self._num_elements, np.float32)
        return MappedSeat(self._board, MappedCenter(self._center, member), member, answers)

    def drop(self, name: str) -> None:
        raise NotImplementedError

    def describe(self) -> str:
        raise NotImplementedError


class Box:
    """Serves the center and, at a second port, takes in what the channel alone is measured with."""

    def __init__(self, job: dict[str, object], array: np.ndarray) -> None:
        self._array = array
        self._channels: list[Channel] = []
        key = read_key(Path(str(job["key"])))
        self._service = Service(OneCenter(len(array)), ServingConfig())
        self._listeners = [Listener(listen(), key, accept) for accept in (self._service.accept, self._channels.append)]
        answer([listener.address for listener in self._listeners])

    def take_part(self, side: str) -> None:
        match side:
            case "gloo send":
                dist.recv(torch.from_numpy(self._array), MEMBER)
                dist.send(torch.zeros(1), MEMBER)
            case "gloo recv":
                dist.send(torch.from_numpy(self._array), MEMBER)
            case "channel":
                (channel,) = self._channels
                channel.receive(in_time())
                channel.receive_body(self._array, in_time())
                channel.send(b"", None, in_time())

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._service.close()
        for channel in self._channels:
            channel.close()


class Reader:
    """The member, which measures."""

    def __init__(self, job: dict[str, object], array: np.ndarray) -> None:
        self._array = array
        self._sequence = 0
        key = read_key(Path(str(job["key"])))
        box, other = (tuple(address) for address in json.loads(sys.stdin.readline()))
        self._center = RemoteCenter(BoxAddress(box, key), "c", "member", in_time())
        self._channel = connect(other, key, "member", "box", in_time())
        answer("ready")

    def take_part(self, side: str) -> None:
        self._array[:] = 1.0
        began_s = time.perf_counter()
        match side:
            case "gloo send":
                dist.send(torch.from_numpy(self._array), BOX)
                dist.recv(torch.zeros(1), BOX)
            case "gloo recv":
                dist.recv(torch.from_numpy(self._array), BOX)
            case "channel":
                self._channel.send(b"", self._array, in_time())
                self._channel.receive(in_time())
            case "accumulate":
                self._center.accumulate(self._next_sequence(), self._array, in_time())
            case "exchange":
                self._center.exchange(self._next_sequence(), self._array, 0.0, in_time())
            case "read":
                self._center.read(self._array, in_time())
        answer(time.perf_counter() - began_s)

    def close(self) -> None:
        got = np.empty_like(self._array)
        versions = self._center.read(got, in_time())
        answer({"versions": sorted(set(versions.tolist())), "values": sorted(set(got.tolist()))})
        self._center.close()
        self._channel.close()

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence


def main() -> None:
    job = json.loads(sys.argv[1])
    _native.die_with_parent()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=job["meeting"], rank=job["rank"], world_size=2)
    array = np.zeros(job["num_elements"], np.float32)
    process = (Box, Reader)[job["rank"]](job, array)
    for line in sys.stdin:
        began_s = time.process_time()
        process.take_part(line.strip())
        sys.stdin.readline()
        answer(time.process_time() - began_s)
    process.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
