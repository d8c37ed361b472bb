"""One side of `remote.py`: the box (rank 0) or its member (rank 1), which are the two ranks of a gloo group as well.

For each line SIDE of its input a process does its part. It answers with the seconds that the member's part took, and
its own CPU seconds until both were done. At the end the member answers with the center's values.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from turns import answer

from samovar import _native
from samovar.box.buffers import BufferShape, NamedBuffers
from samovar.box.line import BoxAddress
from samovar.box.local import holder_address
from samovar.box.memory_holder import HeldMemory
from samovar.box.remote import RemoteCenter
from samovar.box.seats import BufferHost
from samovar.box.serving import Service, ServingConfig
from samovar.core.clock import Deadline
from samovar.transports.keys import read_key
from samovar.transports.secure import SecureChannel, connect
from samovar.transports.tcp_listen import Listener, listen

TIMEOUT_S = 120.0
BOX, MEMBER = range(2)
PLACES = "places"


def in_time() -> Deadline:
    return Deadline.after(TIMEOUT_S)


class Box:
    """Serves the center and, at a second port, takes in what the channel alone is measured with."""

    def __init__(self, job: dict[str, object], store: dist.Store, array: np.ndarray) -> None:
        self._array = array
        self._channels: list[SecureChannel] = []
        key = read_key(Path(str(job["key"])))
        self._memory = HeldMemory(holder_address(f"benchmark-{os.getpid()}"), TIMEOUT_S)
        self._buffers = NamedBuffers(self._memory)
        self._buffers.create("c", BufferShape(len(array)))
        self._service = Service(BufferHost(self._buffers), ServingConfig())
        self._listeners = [Listener(listen(), key, accept) for accept in (self._service.accept, self._channels.append)]
        store.set(PLACES, json.dumps([listener.address for listener in self._listeners]))

    def take_part(self, side: str) -> float:
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
        return 0.0

    def close(self) -> object:
        for listener in self._listeners:
            listener.close()
        self._service.close()
        for channel in self._channels:
            channel.close()
        self._buffers.close()
        self._memory.end()
        return "closed"


class Member:
    """The member, which measures."""

    def __init__(self, job: dict[str, object], store: dist.Store, array: np.ndarray) -> None:
        self._array = array
        self._sequence = 0
        key = read_key(Path(str(job["key"])))
        box, other = (tuple(address) for address in json.loads(store.get(PLACES)))
        self._center = RemoteCenter(BoxAddress(box, key), "c", "member", in_time())
        self._channel = connect(other, key, "member", "box", in_time())

    def take_part(self, side: str) -> float:
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
        return time.perf_counter() - began_s

    def close(self) -> object:
        got = np.empty_like(self._array)
        versions = self._center.read(got, in_time())
        self._center.close()
        self._channel.close()
        return {"versions": sorted(set(versions.tolist())), "values": sorted(set(got.tolist()))}

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence


def main() -> None:
    job = json.loads(sys.argv[1])
    _native.die_with_parent()
    torch.set_num_threads(1)
    store = dist.FileStore(job["meeting"], 2)
    dist.init_process_group("gloo", store=dist.PrefixStore("torch", store), rank=job["rank"], world_size=2)
    array = np.zeros(job["num_elements"], np.float32)
    process = (Box, Member)[job["rank"]](job, store, array)
    answer("ready")
    for line in sys.stdin:
        began_s = time.process_time()
        wall_s = process.take_part(line.strip())
        dist.barrier()
        answer([wall_s, time.process_time() - began_s])
    for rank in (MEMBER, BOX):  # who is connected leaves first
        if job["rank"] == rank:
            answer(process.close())
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
