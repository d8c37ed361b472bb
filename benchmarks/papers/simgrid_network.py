"""Our network model against SimGrid's CM02: `python benchmarks/papers/simgrid_network.py`.

The plans of an all-reduce run in both, on 16 and 64 hosts at a switch. SimGrid comes from Debian's python3-simgrid.
"""

import json
import subprocess
import sys
from pathlib import Path

from samovar.collectives.plan import Notify, Put, Wait
from samovar.collectives.plans import ALL_REDUCES
from samovar.core.machine import Link, MachineModel
from samovar.predict.plans import all_reduce_s

PROGRAM = Path(__file__).with_name("simgrid_plan.py")
PYTHON = "/usr/bin/python3"  # Debian's, which has the module
HOSTS, SIZES = (16, 64), (100_000, 10_000_000)
LINKS = {"1 Gbit/s": Link(50e-6, 125e6), "10 Gbit/s": Link(25e-6, 1.25e9)}
PLANS = ("tree", "kary-tree", "halving-doubling", "ring", "server")
WITHIN = 0.05


def main() -> int:
    worst = 0.0
    print(f"{'plan':18}{'hosts':>6}{'bytes':>12}  {'link':11}{'ours':>11}{'SimGrid':>11}{'error':>8}")
    for num_hosts in HOSTS:
        for name in PLANS:
            for words, link in LINKS.items():
                for size in SIZES:
                    ours = all_reduce_s(ALL_REDUCES[name], num_hosts, size, MachineModel(link))
                    theirs = simgrid_s(name, num_hosts, size, link)
                    error = ours / theirs - 1
                    worst = max(worst, abs(error))
                    figures = f"{1e3 * ours:9.3f}ms{1e3 * theirs:9.3f}ms{error:+8.1%}"
                    print(f"{name:18}{num_hosts:6}{size:12,}  {words:11}{figures}", flush=True)
    print(f"largest error {worst:.1%}, bar {WITHIN:.0%} (both simulated)")
    return 0 if worst <= WITHIN else 1


def simgrid_s(name: str, num_hosts: int, num_bytes: int, link: Link) -> float:
    """Seconds of one all-reduce there."""
    plans = [ALL_REDUCES[name](rank, num_hosts) for rank in range(num_hosts)]
    ranks: list[list[list[object]]] = []
    for plan in plans:
        operations: list[list[object]] = []
        for one in plan.operations:
            match one:
                case Put(peer=peer, chunk=chunk, slot=slot):
                    start, stop = plan.chunk_bounds(chunk, num_bytes)
                    operations.append(["put", peer, slot, stop - start])
                case Notify(peer=peer, slot=slot):
                    operations.append(["put", peer, slot, 1])
                case Wait(slot=slot):
                    operations.append(["wait", slot])
        ranks.append(operations)
    asked = {"latency_s": link.latency_s, "bandwidth": link.bandwidth_bytes_per_s, "ranks": ranks}
    done = subprocess.run(
        [PYTHON, str(PROGRAM)], input=json.dumps(asked), capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise SystemExit(f"SimGrid: {done.stderr.strip()[-300:]}; apt-get install python3-simgrid")
    return float(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
