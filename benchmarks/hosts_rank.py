"""One rank on a host of its own: a torch net, trained as asked by each of several sides in turn.

    hosts_rank.py JOB

JOB is JSON: the net, the data, the sides with their settings, and the box, if any. It starts with torchrun's variables.
It answers when it is ready, and then to each line of its input. `SIDE STEPS` gives the seconds of its steps, and of
their computing. `accuracy SIDE` gives the number of test images in its part that are right, and `loss SIDE` the loss on
its part of held-out text. `traffic SIDE` gives the bytes that the host sent in the side's steps, and their peak.
`exchange BYTES` makes an all-reduce of that size by gloo, without a step. It gives the bytes that the host sent, and
the seconds in which its core was busy. `verify SIDE` gives the weights' digest and
counts. At the end of the input it leaves.
"""

import hashlib
import json
import os
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from center_seat import open_seat, open_turns, shape_for
from images import Images, random_images
from texts import LENGTH, NUM_TOKENS, STDLIB, Texts
from torch import nn
from torch_nets import Transformer, alexnet, lenet, resnet18
from torch_sides import TIMEOUT_S, AtCenter, Ddp, Replicated, Side
from traffic import Meter, Traffic
from turns import answer

from samovar import _native
from samovar.frontends.torch.parameters import layout_of
from samovar.strategies.base import CenterSeat
from samovar.strategies.config import StrategyConfig

_PIECE_BYTES = 8 << 20
_BUSY = (1, 3, 6, 7)  # columns of /proc/stat: programs that are not niced, their calls, interrupts of both kinds


def language_model(width: int, layers: int) -> nn.Module:
    """Of bytes; its outputs are those of all places of all texts, one after the other."""
    return nn.Sequential(Transformer(NUM_TOKENS, width, width // 64 or 2, layers, LENGTH), nn.Flatten(0, 1))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "alexnet": (alexnet, (3, 227, 227), 1000),
    "lenet": (lenet, (1, 28, 28), 10),
    "resnet18": (resnet18, (3, 224, 224), 1000),
    "transformer": (lambda: language_model(384, 6), (), 0),
    "small-transformer": (lambda: language_model(32, 2), (), 0),
}


def busy_s() -> float:
    """The seconds that this process's core was busy with programs that are not niced, and with the network."""
    (core,) = os.sched_getaffinity(0)
    line = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{core} "))
    columns = line.split()
    return sum(int(columns[place]) for place in _BUSY) / os.sysconf("SC_CLK_TCK")


class Rank:
    """This rank's sides; all ranks are asked the same."""

    def __init__(self, job: dict[str, Any], store: dist.Store, closing: ExitStack) -> None:
        self._job, self._store, self._closing = job, store, closing
        self._number, self._world_size = dist.get_rank(), dist.get_world_size()
        self._texts = Texts() if job["data"] == STDLIB else None
        self._images = Images.of(job["data"]) if job["data"] and not self._texts else None
        self._traffic: dict[str, Traffic] = defaultdict(Traffic)
        self._blocks = count()
        self._sides = {name: self._side(name, dict(settings)) for name, settings in job["sides"].items()}

    def answer(self, line: str) -> object:
        what, argument = line.split()
        if what == "accuracy":
            return self._accuracy(self._sides[argument])
        if what == "loss":
            return self._loss(self._sides[argument])
        if what == "traffic":
            return asdict(self._traffic[argument])
        if what == "verify":
            return self._verified(self._sides[argument])
        if what == "exchange":
            return self._exchanged(int(argument))
        return self._block(what, int(argument))

    def _side(self, name: str, settings: dict[str, Any]) -> Side:
        kind = settings.pop("kind")
        torch.manual_seed(self._job["seed"])
        make_net, shape, classes = NETS[self._job["net"]]
        net = make_net()
        batch = self._job["batch"]
        if self._texts is not None:
            batches = self._texts.batches(self._number, self._world_size, batch, self._job["seed"])
        elif self._images is None:
            batches = random_images(self._number, batch, shape, classes)
        else:
            batches = self._images.batches(self._number, self._world_size, batch, self._job["seed"])
        made = (net, self._job["rate"], batches)
        if kind == "ddp":
            return Ddp(*made, **settings)
        if kind == "alone":
            return Side(*made, **settings)
        if settings.get("transport") == "tcp":
            settings["key_file"] = self._job["key"]
        if kind == "replicated":
            return Replicated(*made, **settings)
        return self._at_center(name, made, settings)

    def _at_center(self, name: str, made: tuple[Any, ...], settings: dict[str, Any]) -> AtCenter:
        """The first rank makes the center and gives it its weights before the others come."""
        config = StrategyConfig(settings.pop("strategy"), **settings)
        shape = shape_for(config, layout_of(dict(made[0].named_parameters())).num_elements)
        turns: Any = open_turns(self._job, dist.PrefixStore(name, self._store), self._number, self._world_size)
        self._closing.callback(turns.transport.close)
        if self._number > 0:
            dist.barrier()
        seat = self._closing.enter_context(open_seat(self._job, name, shape, self._number))
        net, rate, batches = made
        side = AtCenter(net, rate, batches, config, CenterSeat(seat.center, self._number == 0, self._world_size), turns)
        if self._number == 0:
            dist.barrier()
        return side

    def _block(self, name: str, num_steps: int) -> list[float]:
        """Seconds, and computing seconds, of `num_steps` steps, after those that bring this side to a steady pace.

        An asynchronous rank continues until the others have made their steps; that time does not count.
        """
        for side in self._sides.values():
            side.settle()
        side = self._sides[name]
        dist.barrier()
        for _ in range(self._job["warm_steps"].get(name, 0)):
            self._step(side)
        meter = Meter(self._job["interface"], self._traffic[name]) if self._job.get("is_metered") else nullcontext()
        with meter:
            began_s, computed_s = time.perf_counter(), 0.0
            for _ in range(num_steps):
                computed_s += self._step(side)
            wall_s = time.perf_counter() - began_s
        self._go_on_for_others(side)
        return [wall_s, computed_s]

    def _go_on_for_others(self, side: Side) -> None:
        key = f"block {next(self._blocks)}"
        self._store.add(key, 1)
        while side.waits_for_nobody and self._store.add(key, 0) < self._world_size:
            self._step(side)

    def _step(self, side: Side) -> float:
        """The seconds that computing takes on this host: where it is a slower one, `host_step_s`, always the same.

        With `shares_cores` the time in which another process has its core is a part of that.
        """
        began_s, by_wall_s = time.thread_time(), time.perf_counter()
        side.step()
        computed_s = side.computed_at_s - began_s
        if self._job.get("shares_cores"):
            computed_s = side.updated_at_s - by_wall_s
        rest_s = self._job["host_step_s"] - computed_s
        if rest_s <= 0:
            return computed_s
        time.sleep(rest_s)
        return self._job["host_step_s"]

    def _accuracy(self, side: Side) -> list[int]:
        assert self._images is not None
        dist.barrier()
        with side.evaluated():
            return self._images.correct(side.net, self._number, self._world_size)

    def _loss(self, side: Side) -> list[float]:
        assert self._texts is not None
        dist.barrier()
        with side.evaluated():
            return self._texts.loss(side.net, self._number, self._world_size)

    def _exchanged(self, num_bytes: int) -> list[float]:
        pieces = torch.zeros(num_bytes // 4).split(_PIECE_BYTES // 4)
        dist.barrier()
        traffic = Traffic()
        with Meter(self._job["interface"], traffic):
            began_s = busy_s()
            for work in [dist.all_reduce(piece, async_op=True) for piece in pieces]:
                work.wait()
            dist.barrier()
        return [traffic.num_bytes, busy_s() - began_s]

    def _verified(self, side: Side) -> dict[str, Any]:
        """A digest of the weights that count, and how many updates the center holds, by chunks, and of this rank."""
        side.settle()
        dist.barrier()
        with side.evaluated():
            parameters = [parameter.detach() for parameter in side.net.parameters()]
            is_finite = all(bool(parameter.isfinite().all()) for parameter in parameters)
            sha256 = hashlib.sha256()
            for parameter in parameters:
                sha256.update(parameter.numpy().tobytes())
        found: dict[str, Any] = {"sha256": sha256.hexdigest(), "is_finite": is_finite}
        if isinstance(side, AtCenter):
            found |= {"updates": side.strategy.num_updates, "versions": side.versions()}
        return found


def main() -> None:
    job = json.loads(sys.argv[1])
    _native.die_with_parent()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=TIMEOUT_S)
    # Not the port of the variables, where Samovar's ranks meet.
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1
    store = dist.TCPStore(address, port, world_size, is_master=rank == 0, timeout=limit)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("torch", store), rank=rank, world_size=world_size, timeout=limit
    )
    with ExitStack() as closing:
        asked = Rank(job, store, closing)
        answer("ready")
        for line in sys.stdin:
            answer(asked.answer(line))
        dist.barrier()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
