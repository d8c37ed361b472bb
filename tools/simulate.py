"""Run plans, steps, centers and whole runs on simulated machines: many seeds, one again, or the time of many ranks.

    python tools/simulate.py --seeds N [--first-seed S] [--of KIND]      exits 1 at the first seed that fails
    python tools/simulate.py --of KIND --seed S [--collective NAME ...]  one seed, as a failing one prints it
    python tools/simulate.py --ranks P [--runs N] [--collective NAME] [--bytes N]

A seed runs one case of each kind:

- `plans`: any collective in the Python executor.
- `native`: the same in the native core, operation by operation.
- `steps`: some steps of `sync`.
- `centers`: workers at a center of window verbs. `mapped`: the same at the native center.
- `sessions`: ranks that come to a center, fill it or wait.
- `elastic`: workers in step that come, leave and die between and during exchanges, on a network with faults.
- `runs`: a run of any strategy, 8 workers and 60 steps, under faults of every kind.
- `box`: members of a box on a link that loses, doubles, reorders and breaks, and crashes of both.

Many seeds share all cores. Every hundredth seed is played twice, and must have the same events. Of a failing case with
faults, a schedule with as few of them as possible is found, and told.

The last command times the simulator itself, with all-reduces that only count bytes.
"""

import argparse
import math
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from samovar.collectives.execute import Channel  # noqa: E402
from samovar.core.machine import Link, MachineModel  # noqa: E402
from samovar.predict.cores import on_all_cores  # noqa: E402
from samovar.transports.base import Region  # noqa: E402
from samovar.transports.sim.world import SimConfig, SimRun, SimTransport, simulate  # noqa: E402
from tests.conformance import cases  # noqa: E402
from tests.sim.box_world import BoxCase, run_box  # noqa: E402
from tests.sim.center_runs import run_strategy  # noqa: E402
from tests.sim.centers import CenterCase, run_center  # noqa: E402
from tests.sim.elastic import ElasticCase, run_elastic  # noqa: E402
from tests.sim.harness import SimCase, run_case  # noqa: E402
from tests.sim.mapped_centers import run_mapped  # noqa: E402
from tests.sim.native import run_native  # noqa: E402
from tests.sim.runs import RunCase  # noqa: E402
from tests.sim.script import Script  # noqa: E402
from tests.sim.sessions import SessionCase, run_sessions  # noqa: E402
from tests.sim.shrink import story  # noqa: E402
from tests.sim.steps import StepsCase, run_steps  # noqa: E402

CLUSTER = MachineModel(Link(latency_s=1e-6, bandwidth_bytes_per_s=5e9, overhead_s=1e-6), reduce_bytes_per_s=1e10)
PROGRESS_EVERY = 1000
BLOCK_SEEDS = 50  # that one process plays before it takes others
REPEATED_EVERY = 100


@dataclass(frozen=True)
class Kind:
    """A kind of case: the settings that a seed draws, and the function that runs it; some take a script of faults."""

    case: Any
    play: Callable[..., SimRun[Any]]

    @property
    def has_faults(self) -> bool:
        return any(field.name == "only" for field in fields(self.case))

    def run(self, case: Any) -> SimRun[Any]:
        """Raises what is wrong, with a note of the shortest schedule of faults with which it happens."""
        if not self.has_faults:
            return self.play(case)
        script = Script(case.seed, case.only)
        try:
            return self.play(case, script=script)
        except Exception as error:
            error.add_note(story(lambda case, script: self.play(case, script=script), case, error, script.happened))
            raise


KINDS = {
    "plans": Kind(SimCase, run_case),
    "native": Kind(SimCase, run_native),
    "steps": Kind(StepsCase, run_steps),
    "centers": Kind(CenterCase, run_center),
    "mapped": Kind(CenterCase, run_mapped),
    "sessions": Kind(SessionCase, run_sessions),
    "elastic": Kind(ElasticCase, run_elastic),
    "runs": Kind(RunCase, run_strategy),
    "box": Kind(BoxCase, run_box),
}


def main(arguments: Sequence[str]) -> int:
    options = parsed(arguments)
    if options.ranks is not None:
        return show_timing(getattr(options, "collective", "tree"), options.ranks, options.runs, options.bytes)
    kinds = [options.of] if options.of else list(KINDS)
    if options.seed is not None:
        return play_given([(kind, chosen(kind, options)) for kind in kinds])
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    blocks = [seeds[start : start + BLOCK_SEEDS] for start in range(0, len(seeds), BLOCK_SEEDS)]
    played = Played(len(seeds) * len(kinds))
    try:
        on_all_cores([partial(play_seeds, kinds, block) for block in blocks], played.add)
    except CaseFailed:
        return 1
    return 0


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=KINDS)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seed", type=int)
    settings = {field.name: field.type for kind in KINDS.values() for field in fields(kind.case)}
    for name in settings.keys() - {"seed"}:
        of_text = {"True": True, "False": False}.__getitem__ if settings[name] is bool else settings[name]
        parser.add_argument(f"--{name.replace('_', '-')}", type=of_text, default=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--bytes", type=int, default=28_000_000)
    return parser.parse_args(arguments)


def chosen(kind: str, options: argparse.Namespace) -> object:
    """The settings that the seed draws, unless an option of a field's name sets one."""
    case = KINDS[kind].case.of_seed(options.seed)
    given = {field.name for field in fields(case)} & vars(options).keys()
    return replace(case, **{name: getattr(options, name) for name in given})


class CaseFailed(Exception):
    """A case failed, and its process has told why."""


class Played:
    """The cases that all processes have played, of `num_wanted`."""

    def __init__(self, num_wanted: int) -> None:
        self._num_wanted, self._began_s = num_wanted, time.monotonic()
        self._num_cases = self._num_messages = 0

    def add(self, found: tuple[int, int] | None) -> None:
        """Count the cases and messages of a block, and tell at every thousandth. Raises CaseFailed if there is none."""
        if found is None:
            raise CaseFailed
        before, (num_cases, num_messages) = self._num_cases, found
        self._num_cases += num_cases
        self._num_messages += num_messages
        if before // PROGRESS_EVERY != self._num_cases // PROGRESS_EVERY or self._num_cases == self._num_wanted:
            taken_s = time.monotonic() - self._began_s
            speed = f"{taken_s:.1f} s: {self._num_cases / taken_s:.1f} cases/s"
            print(f"{self._num_cases} cases, {self._num_messages} messages, {speed}", flush=True)


def play_seeds(kinds: Sequence[str], seeds: Sequence[int]) -> tuple[int, int] | None:
    """How many cases and messages; None if a case fails."""
    runs = play_all([(kind, KINDS[kind].case.of_seed(seed)) for seed in seeds for kind in kinds])
    return None if runs is None else (len(runs), sum(run.num_messages for run in runs))


def play_given(wanted: Sequence[tuple[str, object]]) -> int:
    """Tell the events of each."""
    runs = play_all(wanted)
    for (_, case), run in zip(wanted, runs or (), strict=False):
        print(f"{case}: as documented; events {run.event_hash}")
    return int(runs is None)


def play_all(wanted: Sequence[tuple[str, object]]) -> list[SimRun[Any]] | None:
    """Stop at the first case that fails, and print the command that repeats it."""
    runs = []
    for kind, case in wanted:
        try:
            runs.append(KINDS[kind].run(case))
            require_repeated(kind, case, runs[-1])
        except Exception:
            traceback.print_exc()
            return None
    return runs


def require_repeated(kind: str, case: Any, run: SimRun[Any]) -> None:
    """Of every hundredth seed: another run of it has the same events."""
    if case.seed % REPEATED_EVERY == 0 and KINDS[kind].run(case).event_hash != run.event_hash:
        raise AssertionError(f"{case} has other events when it is played again")


def show_timing(collective: str, num_ranks: int, num_runs: int, num_bytes: int) -> int:
    began_s, cpu_began_s = time.monotonic(), time.process_time()
    run = many_all_reduces(collective, num_ranks, num_runs, num_bytes)
    taken_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_began_s
    print(
        f"{num_runs} all-reduces ({collective}) of {num_bytes} counted bytes on {num_ranks} ranks: {taken_s:.1f} s "
        f"({cpu_s:.1f} s of one core) for {run.num_messages} messages, "
        f"simulated: {run.seconds / num_runs:.6f} s per all-reduce, events {run.event_hash[:16]}"
    )
    return 0


def many_all_reduces(collective: str, num_ranks: int, num_runs: int, num_bytes: int) -> SimRun[None]:
    """All-reduces, one after the other, on a simulated cluster."""
    config = SimConfig(machine=CLUSTER, check=False, counted_above_bytes=0)
    return simulate(partial(all_reduces, collective, num_runs, num_bytes), num_ranks, config)


def all_reduces(collective: str, num_runs: int, num_bytes: int, transport: SimTransport) -> None:
    """One rank's program."""
    num_elements = num_bytes // 4
    window = transport.open_window("data", num_elements * 4, 0)
    plan = cases.COLLECTIVES[collective].function(transport.group.rank, transport.group.world_size)
    channel = Channel(collective, plan, transport, Region.of(window, 0, num_elements, np.float32))
    for _ in range(num_runs):
        channel.run(transport.deadline(math.inf))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
