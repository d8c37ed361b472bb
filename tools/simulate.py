"""Every plan, or whole steps, on simulated machines: many seeds, one seed again, or how long many ranks take.

    python tools/simulate.py --seeds N [--first-seed S]        N seeds; exits 1 at the first that fails
    python tools/simulate.py --seed S [--collective NAME] [--world-size P] [--size N] [--dtype TYPE]
    python tools/simulate.py --steps [--seeds N] [--first-seed S]
    python tools/simulate.py --steps --seed S [--overlap NAME] [--collective NAME] [--world-size P] [--bucket-bytes N]
    python tools/simulate.py --ranks P [--runs N] [--collective NAME] [--bytes N]

With --steps a case is some steps of `sync`, from gradients to updated weights. The last line times the simulator
itself: unsegmented all-reduces on P ranks, their bytes only counted.
"""

import argparse
import math
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from samovar.collectives.execute import Channel  # noqa: E402
from samovar.core.machine import Link, MachineModel  # noqa: E402
from samovar.transports.base import Region  # noqa: E402
from samovar.transports.sim.transport import SimTransport  # noqa: E402
from samovar.transports.sim.world import SimConfig, SimRun, simulate  # noqa: E402
from tests.conformance import cases  # noqa: E402
from tests.sim import steps  # noqa: E402
from tests.sim.harness import COLLECTIVES, DTYPES, SimCase, run_case  # noqa: E402

CLUSTER = MachineModel(Link(latency_s=1e-6, bandwidth_bytes_per_s=5e9, overhead_s=1e-6), reduce_bytes_per_s=1e10)
PROGRESS_EVERY = 1000
Case = SimCase | steps.StepsCase


def main(arguments: Sequence[str]) -> int:
    options = parsed(arguments)
    if options.ranks is not None:
        return show_timing(options.collective or "tree", options.ranks, options.runs, options.bytes)
    if options.seed is not None:
        return run_all([chosen(options)])
    return run_all([drawn(options, options.first_seed + index) for index in range(options.seeds)])


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--collective", choices=steps.COLLECTIVES if "--steps" in arguments else COLLECTIVES)
    parser.add_argument("--world-size", type=int)
    parser.add_argument("--size", type=int, help="elements")
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--overlap", choices=steps.OVERLAPS)
    parser.add_argument("--bucket-bytes", type=int)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--bytes", type=int, default=28_000_000)
    return parser.parse_args(arguments)


def drawn(options: argparse.Namespace, seed: int) -> Case:
    return steps.StepsCase.of_seed(seed) if options.steps else SimCase.of_seed(seed)


def chosen(options: argparse.Namespace) -> Case:
    """What the seed draws, where no option of a field's name says otherwise."""
    case = drawn(options, options.seed)
    given = {field.name: getattr(options, field.name) for field in fields(case)}
    return replace(case, **{name: value for name, value in given.items() if value is not None})


def run_one(case: Case) -> SimRun:
    return steps.run_steps(case) if isinstance(case, steps.StepsCase) else run_case(case)


def run_all(wanted: Sequence[Case]) -> int:
    """Stops at the first case that fails, and says how to repeat it."""
    began_s = time.monotonic()
    num_messages = 0
    for index, case in enumerate(wanted, start=1):
        try:
            run = run_one(case)
        except Exception:
            traceback.print_exc()
            return 1
        num_messages += run.num_messages
        if index % PROGRESS_EVERY == 0 or index == len(wanted):
            taken_s = time.monotonic() - began_s
            print(f"{index} seeds, {num_messages} messages, {taken_s:.1f} s: {index / taken_s:.1f} seeds/s", flush=True)
    if len(wanted) == 1:
        print(f"{wanted[0]}: as documented; events {run.event_hash}")
    return 0


def show_timing(collective: str, num_ranks: int, num_runs: int, num_bytes: int) -> int:
    began_s, cpu_began_s = time.monotonic(), time.process_time()
    run = many_all_reduces(collective, num_ranks, num_runs, num_bytes)
    taken_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_began_s
    print(
        f"{num_runs} all-reduces ({collective}) of {num_bytes} counted bytes on {num_ranks} ranks: {taken_s:.1f} s "
        f"({cpu_s:.1f} s of one core) for {run.num_messages} messages; "
        f"simulated: {run.seconds / num_runs:.6f} s per all-reduce; events {run.event_hash[:16]}"
    )
    return 0


def many_all_reduces(collective: str, num_ranks: int, num_runs: int, num_bytes: int) -> SimRun[None]:
    """Unsegmented all-reduces, one after the other, on a simulated cluster."""
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
