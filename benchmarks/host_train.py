"""`samovar train` on two hosts of one core each, by its commands. Needs root.

- `two-hosts-train`: AlexNet's shape, against DDP on gloo of the same net: sync every step at 1 Gbit/s, and sync-easgd
  every 8 steps at 100 Mbit/s.
- `two-hosts-scaling`: CIFAR-10 full in step, against the same two workers on one host: 10 Gbit/s, and no limit.

Runs and blocks of DDP take turns. Nets read numbers that are made once. The first steps of a run are left out, and its
replicas must be equal at the end. A run in step is timed by its own figures, which include exchanges. An exchange that
a period hides is not in them. So the periods of sync-easgd are timed by the clock, two of one run.
"""

import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from figures import Figure, compare
from hosts import ETHERNET_MTU, TIMEOUT_S, ranks_on, require_namespaces
from namespaces import NamespaceHost, two_hosts
from ranks import FOLDER, ZOO, own_cpus
from two_hosts import THEIRS, WORLD_SIZE, verify

sys.path.insert(0, str(FOLDER.parent))
from tests.multihost.train_run import HostsRun, started
from tests.multiproc.command import metrics_of, result_of
from tests.multiproc.command import run as run_command

PERIOD = 8
_DATA = re.compile(r'^layer \{\n  name: "[a-z]+" type: "Data".*?^\}\n', re.MULTILINE | re.DOTALL)
_LAYER = re.compile(r'^layer \{ name: "(norm|drop)\d" .*\n', re.MULTILINE)
_DUMMY = """layer {{
  name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param {{
    shape {{ dim: {batch} dim: 3 dim: {size} dim: {size} }} shape {{ dim: {batch} }}
    data_filler {{ type: "gaussian" std: 1 }} data_filler {{ type: "constant" value: 1 }}
  }}
}}
"""
_SOLVER = 'net: "{net}" base_lr: 0.0001 lr_policy: "fixed" momentum: 0.9 random_seed: 1 display: 1 max_iter: {steps}\n'


@dataclass(frozen=True)
class Task:
    """A net of the zoo, a worker's batch, the steps of a run, and how many of them are left out."""

    net: str
    batch: int
    size: int
    steps: int
    warm_steps: int
    flags: tuple[object, ...] = ()
    period: int | None = None

    def written(self, folder: Path) -> Path:
        """The solver. Of AlexNet the shape alone: without normalization and dropout, as `torch_nets.alexnet`."""
        text = (ZOO / self.net / "train_val.prototxt").read_text()
        text = _DUMMY.format(batch=self.batch, size=self.size) + _LAYER.sub("", _DATA.sub("", text))
        net, solver = folder / f"{self.net}.prototxt", folder / f"{self.net}-{self.steps}.solver"
        net.write_text(re.sub(r'"norm(\d)"', r'"conv\1"', text) if self.net == "alexnet" else text)
        solver.write_text(_SOLVER.format(net=net, steps=self.steps))
        return solver


@dataclass(frozen=True)
class Contest:
    task: Task
    rate: str
    ddp_steps: int
    num_pairs: int
    bar: float


SYNC, EASGD = ("--strategy", "sync"), ("--strategy", "sync-easgd", "--sync-period", PERIOD, "--recipe", "none")
CONTESTS = (
    Contest(Task("alexnet", 16, 227, 8, 3, SYNC), "1gbit", 3, 3, 4.0),
    Contest(Task("alexnet", 16, 227, 4 * PERIOD, 2 * PERIOD, EASGD, PERIOD), "100mbit", 1, 1, 8.0),
    Contest(
        Task("alexnet", 16, 227, 4 * PERIOD, 2 * PERIOD, (*EASGD, "--compress", "int8"), PERIOD), "100mbit", 1, 1, 8.0
    ),
)
SHORT = Contest(Task("alexnet", 1, 227, 2, 1, SYNC), "1gbit", 1, 2, 0.0)
SCALING = Task("cifar10_full", 100, 32, 60, 20)


def run_ddp(short: bool = False) -> list[Figure]:
    return [against_ddp(contest, short) for contest in ([SHORT] if short else CONTESTS)]


def run_sync(short: bool = False) -> list[Figure]:
    return [against_ddp(SHORT if short else CONTESTS[0], short)]


def run_easgd(short: bool = False) -> list[Figure]:
    return [against_ddp(SHORT if short else CONTESTS[1], short)]


def run_easgd_int8(short: bool = False) -> list[Figure]:
    return [against_ddp(SHORT if short else CONTESTS[2], short)]


def against_ddp(contest: Contest, short: bool) -> Figure:
    task = contest.task
    job = {"net": "alexnet", "batch": task.batch, "rate": 1e-4, "sides": {THEIRS: {"kind": "ddp"}}, "data": None}
    job |= {"seed": 1, "host_step_s": 0.0, "warm_steps": {THEIRS: 1}}
    ours: list[float] = []
    theirs: list[float] = []
    with ExitStack() as closing:
        hosts, folder = _opened(contest.rate, closing)
        ranks = closing.enter_context(ranks_on(hosts, job))
        for pair in range(contest.num_pairs):
            ours += trained(task, folder, f"run{pair}", hosts)
            while len(theirs) < len(ours):
                slowest_s = max(wall_s for wall_s, _ in ranks.ask(f"{THEIRS} {contest.ddp_steps}"))
                theirs.append(WORLD_SIZE * task.batch * contest.ddp_steps / slowest_s)
        verify(THEIRS, ranks.ask(f"verify {THEIRS}"))
    title = f"AlexNet b{task.batch}, 2 hosts, {contest.rate}: train {' '.join(map(str, task.flags))} / DDP"
    return compare(title, ours, theirs, "samples/s", None if short else contest.bar)


def run_scaling(short: bool = False) -> list[Figure]:
    task = Task("cifar10_full", 4, 32, 3, 1) if short else SCALING
    return [scaling(task, rate, short) for rate in ("10gbit", None)]


def scaling(task: Task, rate: str | None, short: bool) -> Figure:
    ours: list[float] = []
    theirs: list[float] = []
    with ExitStack() as closing:
        hosts, folder = _opened(rate, closing)
        for pair in range(2 if short else 7):
            for side in sorted((ours, theirs), key=id, reverse=pair % 2 == 1):
                side.extend(trained(task, folder, f"run{pair}-{id(side)}", hosts if side is ours else ()))
    title = f"CIFAR-10 full b{task.batch}, {rate or 'no limit'}: 2 hosts x 1 / 1 host x 2"
    return compare(title, ours, theirs, "samples/s", None if short else 0.95)


def _opened(rate: str | None, closing: ExitStack) -> tuple[Sequence[NamespaceHost], Path]:
    require_namespaces()
    hosts = closing.enter_context(two_hosts(rate, ETHERNET_MTU))
    return hosts, Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="samovar-bench-")))


def trained(task: Task, folder: Path, out: str, hosts: Sequence[NamespaceHost]) -> list[float]:
    """Samples/s of all workers of a run on these hosts, a core each; without hosts on this one. One for each period."""
    found: list[float] = []
    cpus, arguments = own_cpus(WORLD_SIZE), ("--solver", task.written(folder), *task.flags)
    if hosts:
        prefixes = [(*host.prefix, "taskset", "-c", cpu) for host, cpu in zip(hosts, cpus, strict=True)]
        place = {"prefixes": prefixes, "address": hosts[0].address, "timeout_s": TIMEOUT_S, "out": out}
        with started(folder, (1, 1), *arguments, **place) as run:
            found += _periods(task, run)
            ended = [command.wait(TIMEOUT_S) for command in run.commands]
    else:
        flags = ("--workers", WORLD_SIZE, "--threads-per-worker", 1, "--out", folder / out)
        prefix = ("taskset", "-c", ",".join(map(str, cpus)))
        ended = [run_command("train", *arguments, *flags, folder=folder, prefix=prefix)]
    if any(each.return_code for each in ended) or not result_of(folder / out)["replicas_equal"]:
        raise SystemExit(f"the run did not end well: {[each.errors for each in ended]}")
    steps = metrics_of(folder / out, "train")[task.warm_steps :]
    return found or [float(sum(step["samples"] for step in steps) / sum(step["seconds"] for step in steps))]


def _periods(task: Task, run: HostsRun) -> list[float]:
    """By the clock; a period ends with a step that waits for the exchange before."""
    ends_s = []
    for step in range(task.warm_steps, task.steps + 1, task.period) if task.period else ():
        run.commands[0].wait_for_step(run.out, step)
        ends_s.append(time.monotonic())
    return [WORLD_SIZE * task.batch * (task.period or 0) / (stop - start) for start, stop in pairwise(ends_s)]
