"""`samovar predict` against runs of this machine: two workers on its cores and over links, and more that only sleep.

In each case one worker is profiled and all take steps, block by block in turn, so both see the same machine. Machine
and links are measured as `samovar doctor` does it. The prediction has nothing else: it is the code that compares every
run (`samovar.predict.foresight`). Gradients travel whole, as a prediction knows no factors. A figure's ratio is the
nearer of predicted / measured and its inverse, of a step. Links need root. The bars are a median error of 8 % and at
most 20 % in step, 12 % and 25 % at a center.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from figures import Figure
from hosts import ETHERNET_MTU, SAMOVAR, require_namespaces
from namespaces import INTERFACE, switched_hosts
from ranks import FOLDER

from samovar.core.machine import CalibrationRecord
from samovar.core.plain import from_plain
from samovar.launcher.calibrate import calibrate
from samovar.predict.cluster import cluster_here
from samovar.predict.foresight import foreseen_of
from samovar.predict.kept import Ran, Subject
from samovar.predict.work import work_of
from samovar.report.host import read_host
from samovar.report.profile import Profile
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved
from samovar.transports.keys import make_key

TIMEOUT_S = 600
PORTS = {"run": 29_700, "doctor": 29_720}
MEDIAN_BARS, WORST_BARS = {False: 0.92, True: 0.88}, {False: 0.80, True: 0.75}  # by whether there is a center
PERIOD = {"sync_period_steps": 4}
SLEEP_S = 0.05


@dataclass(frozen=True)
class Case:
    """`rate` is that of the link between two hosts; "" is one host."""

    net: str
    batch: int
    strategy: str
    settings: Mapping[str, Any]
    rate: str = ""
    workers: int = 2
    emulated_s: float = 0.0
    blocks: int = 6
    alone: int = 8
    together: int = 12

    @property
    def name(self) -> str:
        where = f"2 hosts, {self.rate}" if self.rate else f"{self.workers} workers"
        return f"{self.net} b{self.batch}, {where}{', slept' if self.emulated_s else ''}: {self.strategy}"

    @property
    def config(self) -> StrategyConfig:
        return resolved(StrategyConfig.given(self.strategy, dict(self.settings)), self.workers)

    def job(self, short: bool) -> str:
        warm = 2 * self.settings.get("sync_period_steps", 1)
        counts = {"warm": warm, "blocks": 2, "alone": 1, "together": 4} if short else {
            "warm": warm, "blocks": self.blocks, "alone": self.alone, "together": self.together
        }  # fmt: skip
        transport = {"transport": "tcp"} if self.rate else {}
        common = {"net": self.net, "batch": self.batch, "strategy": self.strategy, "settings": self.settings}
        return json.dumps({**common, **transport, **counts, "emulated_s": self.emulated_s})


def cases(short: bool) -> list[Case]:
    if short:
        return [Case("LeNet", 16, "sync", {}), Case("LeNet", 16, "shm-easgd", PERIOD, emulated_s=0.02)]
    nets: dict[str, tuple[int, int, dict[str, Any]]] = {  # batch, period, and so many steps that a block is short
        "LeNet": (64, 4, {"alone": 20, "together": 24}),
        "CIFAR-10 full": (50, 4, {"alone": 8, "together": 12}),
        "transformer": (4, 4, {"alone": 2, "together": 4}),
        "AlexNet": (4, 2, {"alone": 2, "together": 2}),
    }
    here = [_case(nets, net, name) for net in nets for name in ("sync", "sync-easgd", "shm-easgd")]
    rates = [("LeNet", "50mbit"), ("LeNet", "1gbit"), ("CIFAR-10 full", "50mbit"), ("transformer", "200mbit")]
    rates += [("transformer", "1gbit"), ("AlexNet", "200mbit"), ("AlexNet", "1gbit")]
    between = [_case(nets, net, name, rate=rate) for net, rate in rates for name in ("sync", "sync-easgd")]
    slept = [
        replace(_case(nets, "LeNet", name), workers=workers, emulated_s=SLEEP_S, together=8)
        for workers in (4, 8)
        for name in ("sync", "sync-easgd", "shm-easgd")
    ]
    return [*here, *between, *slept]


def _case(nets: Mapping[str, tuple[int, int, dict[str, Any]]], net: str, strategy: str, rate: str = "") -> Case:
    batch, period, counts = nets[net]
    settings = {"factors": "none"} if strategy == "sync" else {"sync_period_steps": period}
    return Case(net, batch, strategy, settings, rate, **counts)


def run(short: bool = False) -> list[Figure]:
    """All cases, and the medians and worst of those in step and at a center."""
    record = calibrate(read_host())
    found: list[tuple[Case, Figure]] = []
    for case in cases(short):
        found.append((case, figure := compared(case, record, short)))
        print(f"{case.name}: predicted {figure.ours:.1f} ms, measured {figure.theirs:.1f} ms", flush=True)
    return [*(figure for _, figure in found), *([] if short else _summaries(found))]


def compared(case: Case, record: CalibrationRecord, short: bool) -> Figure:
    with ExitStack() as stack:
        hosts: Sequence[Any] = ()
        if case.rate:
            require_namespaces()
            network = stack.enter_context(switched_hosts(2, ETHERNET_MTU))
            network.set_rate(case.rate)
            hosts = network.hosts
            record = replace(record, transports={**record.transports, "tcp": _links(hosts).transports["tcp"]})
        profiles, seconds, num_parameters, collective = _measured(case, hosts, short)
    profile = _middle([from_plain(Profile, one) for one in profiles])
    if case.rate:  # both hosts are this machine, and share its memory
        profile = beside(profile, record)
    subject = Subject(case.net, num_parameters, 1)
    ranks_per_host = 1 if case.rate else case.workers
    ran = Ran(subject, case.config, case.workers, ranks_per_host, case.batch, 1.0, 100, collective)
    predicted = [foreseen_of(replace(ran, step_s=step_s), profile, record) for step_s in seconds]
    ratios = [min(1 + one.error, 1 / (1 + one.error)) for one in predicted]
    ours, theirs = 1e3 * predicted[0].predicted_s, 1e3 * median(seconds)
    lowest, _, highest = quantiles(ratios, n=4)
    return Figure(
        case.name, ours, theirs, "ms", min(ours, theirs) / max(ours, theirs), lowest, highest, len(ratios), None
    )


def _middle(profiles: Sequence[Profile]) -> Profile:
    """Medians of the blocks' layers."""
    layers = tuple(
        replace(
            same[0],
            forward_s=median(layer.forward_s or 0.0 for layer in same),
            backward_s=median(layer.backward_s or 0.0 for layer in same),
        )
        for same in zip(*(profile.layers for profile in profiles), strict=True)
    )
    return replace(profiles[0], layers=layers, update_s=median(profile.update_s or 0.0 for profile in profiles))


def beside(profile: Profile, record: CalibrationRecord) -> Profile:
    """The profile of one worker if another computes on the same machine."""
    cluster = cluster_here(record)
    work = work_of(profile, cluster.worker, profile.batch_size, cluster.slower(2))
    times = {segment.name: (segment.forward_s, segment.backward_s) for segment in work.segments}
    layers = tuple(
        replace(layer, forward_s=times[layer.name][0], backward_s=times[layer.name][1])
        if layer.name in times
        else layer
        for layer in profile.layers
    )
    return replace(profile, layers=layers, update_s=work.update_s)


def _measured(case: Case, hosts: Sequence[Any], short: bool) -> Any:
    program = [str(FOLDER / "predicted_rank.py"), case.job(short)]
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        if hosts:
            return _answer(_on_hosts(hosts, folder, "run", ["--workers", "1", *_key(folder)], program))
        more = ("--oversubscribe",) if case.workers > len(os.sched_getaffinity(0)) else ()
        return _answer([_start(folder, (), ["run", "--workers", str(case.workers), *more, *program])])


def _links(hosts: Sequence[Any]) -> CalibrationRecord:
    """As `samovar doctor --nodes` measures them."""
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        path = Path(folder) / "here.json"
        flags = ["--save", str(path), *_key(folder)]
        for process in _on_hosts(hosts, folder, "doctor", flags, []):
            _ended(process)
        return CalibrationRecord.load(path)


def _key(folder: str) -> list[str]:
    path = Path(folder) / "key.pem"
    make_key(path)
    return ["--key-file", str(path)]


def _on_hosts(hosts: Sequence[Any], folder: str, command: str, flags: Sequence[str], rest: Sequence[str]) -> list[Any]:
    cpus, started = sorted(os.sched_getaffinity(0)), []
    for rank, host in enumerate(hosts):
        place = ("--nodes", str(len(hosts)), "--node-rank", str(rank))
        meeting = ("--master-addr", hosts[0].address, "--master-port", str(PORTS[command]))
        own = flags if rank == 0 or command == "run" else flags[2:]  # one host saves what all measured
        core = ("taskset", "-c", str(cpus[rank % len(cpus)]))
        started.append(_start(folder, (*host.prefix, *core), [command, *place, *meeting, *own, *rest]))
    return started


def _start(folder: str, prefix: Sequence[str], words: Sequence[str]) -> "subprocess.Popen[str]":
    """The command keeps its history in `folder`, apart from the user's."""
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": INTERFACE if prefix else "lo", "XDG_STATE_HOME": folder}
    environment = os.environ | own
    command = [*prefix, str(SAMOVAR), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _answer(processes: Sequence["subprocess.Popen[str]"]) -> Any:
    outputs = [_ended(process) for process in processes]
    return next(json.loads(line.partition("] ")[2]) for line in outputs[0].splitlines() if line.startswith("[0] [["))


def _ended(process: "subprocess.Popen[str]") -> str:
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    if process.returncode:
        raise SystemExit(f"{str(process.args)[:200]}: {errors[-2000:]}")
    return output


def _summaries(figures: Sequence[tuple[Case, Figure]]) -> list[Figure]:
    found = []
    for has_center, what in ((False, "in step"), (True, "at a center")):
        ratios = [figure.ratio for case, figure in figures if case.config.needs_center is has_center]
        for kind, ratio, bar in (
            ("median", median(ratios), MEDIAN_BARS[has_center]),
            ("worst", min(ratios), WORST_BARS[has_center]),
        ):
            found.append(Figure(f"{what}, {kind}", ratio, 1.0, "of the other", ratio, ratio, ratio, len(ratios), bar))
    return found


if __name__ == "__main__":
    sys.exit("start it by benchmarks/run.py predicted")
