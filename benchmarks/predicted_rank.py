"""One rank of `predicted`: a torch loop, alone with its layers timed and with the others, block by block.

    samovar run --workers 2 predicted_rank.py JOB

JOB is JSON: the net, the batch, the strategy with its settings, and the steps and blocks. In a block the first rank
takes steps alone, while the others sleep, and then all take steps together. With `emulated_s` computing is a sleep of
that many seconds, so that more ranks than cores can be tried; there is one layer then. Rank 0 prints the profile of
each block, and the seconds of a step of all.
"""

import contextlib
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from hosts_rank import language_model
from texts import LENGTH, NUM_TOKENS
from torch import nn
from torch_nets import alexnet, cifar10_full, lenet

import samovar
from samovar.api.connect import join_group
from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.core.plain import to_plain
from samovar.launch.identity import Identity
from samovar.report.profile import LayerProfile, Profile, load_profile
from samovar.strategies.config import StrategyConfig

# Of each net: how it is made, a sample's shape, and the classes of its outputs.
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "LeNet": (lenet, (1, 28, 28), 10),
    "CIFAR-10 full": (cifar10_full, (3, 32, 32), 10),
    "AlexNet": (alexnet, (3, 227, 227), 1000),
    "transformer": (lambda: language_model(384, 6), (LENGTH,), NUM_TOKENS),
}
RATE, MOMENTUM = 1e-4, 0.9
REST_S, TIMEOUT_S, UNTIMED_STEPS = 0.4, 300.0, 2


class Loop:
    """Steps of one model on random data, which is made before."""

    def __init__(self, job: dict[str, Any]) -> None:
        make, shape, classes = NETS[job["net"]]
        torch.manual_seed(1)
        self.model = make()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)
        self._emulated_s = job.get("emulated_s")
        words = len(shape) == 1
        inputs = torch.randint(NUM_TOKENS, (job["batch"], *shape)) if words else torch.randn(job["batch"], *shape)
        self._inputs, self._labels = inputs, torch.randint(classes, (job["batch"] * (LENGTH if words else 1),))
        self._idle = [torch.randn_like(parameter) for parameter in self.model.parameters()] if self._emulated_s else []

    def loss(self) -> torch.Tensor:
        if self._emulated_s:
            time.sleep(self._emulated_s)
            pairs = zip(self.model.parameters(), self._idle, strict=True)
            return torch.stack([(parameter * idle).sum() for parameter, idle in pairs]).sum()
        self.optimizer.zero_grad()
        return F.cross_entropy(self.model(self._inputs), self._labels)


class Alone(Loop):
    """The loop of one worker, as `samovar run --workers 1` has it."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        self._job = job
        processes = ProcessGroup(join_group(TIMEOUT_S, identity=Identity()).collectives, TIMEOUT_S)
        self._replica = Replica(self.model, self.optimizer, processes, StrategyConfig(), TIMEOUT_S)

    def profile(self, num_steps: int) -> Profile:
        """Of the next steps, by `replica.profile`; where computing is a sleep, it is one layer."""
        if self._emulated_s:
            began_s = time.perf_counter()
            self._take(num_steps)
            step_s = (time.perf_counter() - began_s) / num_steps
            size = sum(parameter.numel() for parameter in self.model.parameters())
            layer = LayerProfile("net", "", size, 0, 0, 0.0, step_s)
            return Profile(self._job["net"], self._job["batch"], (layer,), "slept", 0.0)
        with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
            path = Path(folder) / "profile.json"
            with contextlib.redirect_stderr(io.StringIO()):  # it says where the profile is
                self._replica.profile(path, steps=num_steps, batch_size=self._job["batch"])
                self._take(num_steps + UNTIMED_STEPS)
            return load_profile(path)

    def _take(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self._replica.backward(self.loss())
            self._replica.step()


def rest() -> None:
    """All begin together, after a pause: without one, who goes before all others is stopped in each second."""
    time.sleep(REST_S)
    dist.barrier()


def await_others() -> None:
    """Wait without sleeping: another program on this core would take memory and cache from the rank that is timed."""
    waiting = dist.barrier(async_op=True)
    while not waiting.is_completed():
        pass


def go_first(job: dict[str, Any]) -> None:
    """As root: before the other programs of the machine. Threads of one core would wait for 100 ms in real time.

    Not between hosts: the kernel's own threads send and receive, and must not wait.
    """
    with contextlib.suppress(OSError):
        if job.get("emulated_s"):
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        elif not job.get("transport"):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def main() -> None:
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    go_first(job)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    alone, together = Alone(job) if rank == 0 else None, Loop(job)
    profiles, seconds = [], []
    settings = {"strategy": job["strategy"], "transport": job.get("transport", "auto"), **job["settings"]}
    with samovar.replicate(together.model, together.optimizer, **settings) as replica:

        def step() -> None:
            replica.backward(together.loss())
            replica.step()

        for _ in range(job["blocks"]):
            rest()
            if alone is not None:
                profiles.append(to_plain(alone.profile(job["alone"])))
            if not job.get("emulated_s"):  # more ranks than cores
                await_others()
            rest()
            for _ in range(job["warm"]):  # an exchange that travels behind a period is under way then
                step()
            began_s = time.perf_counter()
            for _ in range(job["together"]):
                step()
            # Ranks in step end together. At a center each goes at its own speed; all begin together, and all count.
            of_all = [0.0] * dist.get_world_size()
            dist.all_gather_object(of_all, time.perf_counter() - began_s)
            seconds.append(sum(of_all) / len(of_all) / job["together"])
            with replica.evaluating():  # nothing is under way while the first rank is alone
                pass
        replica.finish()
    if rank == 0:
        parameters = sum(parameter.numel() for parameter in together.model.parameters())
        collective = "" if dist.get_world_size() == 1 else job["settings"].get("collective", "")
        print(json.dumps([profiles, seconds, parameters, collective]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
