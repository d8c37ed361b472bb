"""4,352 workers in one process: `python benchmarks/papers/many_ranks.py`. Times of training are simulated.

100 steps of `sync-easgd` on 64 nodes of 68 cores, with its default period and the plan `tree`; bytes are only counted.
"""

import resource
import sys
import time

from samovar.predict.cluster import Cluster, NetworkSpec, NodeSpec
from samovar.predict.runs import SharingChoice, run
from samovar.predict.work import work_of
from samovar.report.profile import LayerProfile, Profile
from samovar.strategies.catalog import asked_for

RANKS, STEPS, MOST_CPU_S = 4352, 100, 120.0
NET = Profile("GoogLeNet", 32, (LayerProfile("net", "", 13_378_280, 1, 0, 1.7, 3.4),))
CLUSTER = Cluster("64 nodes of 68 cores", node=NodeSpec(68, 50e9, 1e-6), network=NetworkSpec(8e9, 1.5e-6, 1e-6))


def main() -> int:
    choice = SharingChoice(asked_for("sync-easgd", "tree", {}), lambda _: "tree")
    begun_s = time.process_time()
    found = run(choice, CLUSTER, work_of(NET, CLUSTER.worker, 32), RANKS, steps=(0, STEPS))
    taken_s = time.process_time() - begun_s
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{RANKS:,} ranks, {STEPS} steps, {found.num_messages:,} messages: {taken_s:.1f} s of one core (bar "
        f"{MOST_CPU_S:g}), {memory:,.0f} MiB; a step takes {found.step_s:.3f} s (simulated)"
    )
    return 0 if taken_s <= MOST_CPU_S else 1


if __name__ == "__main__":
    sys.exit(main())
