"""`samovar predict` against `samovar run --emulate` of the same cluster file: a prediction, tried on one machine.

Real processes take the described time of messages and steps by sleeping. One profile of one worker, taken here, goes
into both. The workers compute so slowly that all of them together fit on this machine's cores. A figure's ratio is the
nearer of predicted / measured and its inverse, of a step.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import harmonic_mean, quantiles
from typing import Any

from figures import Figure
from hosts import SAMOVAR
from ranks import FOLDER

from samovar.core.machine import NOMINAL
from samovar.predict.cluster import load_cluster
from samovar.predict.prediction import Question, predicted
from samovar.report.profile import load_profile

TIMEOUT_S, ROUNDS, BAR = 200, 3, 0.85
OFFICE = """
title = "office machines, 1 Gbit/s"
[worker]
slow_every = 1
slow_factor = 20.0
[network]
bandwidth = "1 Gbit/s"
latency = "200 us"
overhead = "20 us"
"""
RACKS = (
    OFFICE
    + """
[node]
workers = 2
bandwidth = "500 MB/s"
latency = "150 us"
[rack]
nodes = 2
oversubscription = 2
"""
)


@dataclass(frozen=True)
class Try:
    """A strategy on one of the clusters; `settings` are those of both commands."""

    strategy: str
    settings: Mapping[str, Any]
    workers: int = 4
    cluster: str = OFFICE
    collective: str = "ring"

    @property
    def name(self) -> str:
        where = "racks" if self.cluster == RACKS else "1 Gbit/s"
        return f"{self.workers} workers, {where}: {self.strategy} {' '.join(map(str, self.settings.values()))}".strip()


TRIES = (
    Try("sync", {"overlap": "none"}),
    Try("sync", {"overlap": "backward", "bucket_size_bytes": 1 << 21}),
    Try("sync-easgd", {"sync_period_steps": 4}),
    Try("shm-easgd", {"sync_period_steps": 2}),
    Try("async-sgd", {}),
    Try("sync", {"overlap": "none"}, 8, RACKS, "two-level"),
)


def run(short: bool = False) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        place = Path(folder)
        profile = place / "profile.json"
        _started(place, 1, (), {"strategy": "sync", "settings": {}, "profile": str(profile), "steps": 20})
        return [_tried(one, place, profile, short) for one in (TRIES[:2] if short else TRIES)]


def _tried(one: Try, place: Path, profile: Path, short: bool) -> Figure:
    cluster = place / "cluster.toml"
    cluster.write_text(one.cluster)
    asked = (one.strategy,), load_profile(profile).batch_size, False, one.collective, dict(one.settings)
    question = Question(load_profile(profile), load_cluster(str(cluster), NOMINAL), (one.workers,), *asked)
    foreseen = predicted(question)[0]
    foreseen_ms = 1e3 * one.workers * question.batch_size / foreseen.samples_per_s
    flags = ("--oversubscribe", "--emulate", str(cluster), "--profile", str(profile))
    settings = _as_arguments(one)
    job = {"strategy": one.strategy, "settings": settings, "profile": "", "steps": 4 if short else 24}
    measured = [_started(place, one.workers, flags, job) for _ in range(2 if short else ROUNDS)]
    ratios = sorted(min(foreseen_ms / ms, ms / foreseen_ms) for ms in measured)
    lowest, middle, highest = quantiles(ratios, n=4)
    print(f"{one.name}: predicted {foreseen_ms:.1f} ms, emulated {measured}", flush=True)
    return Figure(one.name, foreseen_ms, harmonic_mean(measured), "ms", middle, lowest, highest, len(ratios), BAR)


def _as_arguments(one: Try) -> dict[str, Any]:
    """As `samovar.replicate` has them; without factors, which a prediction does not have."""
    names = {"bucket_size_bytes": "bucket_size", "sync_period_steps": "sync_period"}
    given = {names.get(name, name): value for name, value in one.settings.items()}
    if one.strategy == "sync":
        given |= {"factors": "none", "bucket_size": given.get("bucket_size", "model"), "collective": one.collective}
        given.pop("overlap")
    elif one.strategy == "sync-easgd":
        given["collective"] = one.collective
    return given


def _started(place: Path, workers: int, flags: Sequence[str], job: Mapping[str, Any]) -> float:
    """Run the loop. Gives ms a step: of workers at their own speed, that with which they take as many steps."""
    command = [str(SAMOVAR), "run", "--all-lines", "-n", str(workers), *flags]
    own = {"OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(place / "state")}
    ended = subprocess.run(
        [*command, str(FOLDER / "emulated_rank.py"), json.dumps(job)],
        capture_output=True,
        text=True,
        env=os.environ | own,
        timeout=TIMEOUT_S,
        check=False,
    )
    steps_s = [float(one) for one in re.findall(r"step_s ([\d.e-]+)", ended.stdout)]
    if ended.returncode or len(steps_s) != workers:
        raise SystemExit(f"{command}: {ended.stderr[-2000:]}")
    if "longer than" in ended.stderr:
        print(next(line for line in ended.stderr.splitlines() if "longer than" in line), flush=True)
    return 1e3 * harmonic_mean(steps_s)


if __name__ == "__main__":
    sys.exit("start it by benchmarks/run.py emulated")
