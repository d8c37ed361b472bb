"""The cost of the checks and the figures of `samovar.replicate`, in two processes that share gradients.

The same replica makes steps with them and without them, in turn. Their work is also timed by itself, and added to the
step without them. That figure is the steadier of the two.
"""

import os
import tempfile
from pathlib import Path

from figures import Figure, compare, compare_both
from ranks import Net, Ranks, own_cpus, take_turns

from samovar.transports.shm import create_segment

WORLD_SIZE = 2
MOST = 0.01
# In 8 steps each check is made as often as in any 8 others. A step counts as one here.
NETS = (
    Net("resnet20", "ResNet-20 b64", 1, 3, 32, 8, 16),
    Net("transformer", "transformer 10 M, 8 x 64 tokens", 1, 1, 64, 8, 12),
)


def run(short: bool = False) -> list[Figure]:
    return [figure for net in NETS[: 1 if short else None] for figure in figures_of(net.shortened(short))]


def figures_of(net: Net) -> list[Figure]:
    segment = create_segment(WORLD_SIZE)
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        job = {"net": net.name, "world_size": WORLD_SIZE, "segment": segment, "folder": str(Path(folder, "run"))}
        jobs = [{**job, "rank": rank, "cpu": cpu} for rank, cpu in enumerate(own_cpus(WORLD_SIZE))]
        try:
            ranks = Ranks("checks_rank.py", jobs, [segment])
        finally:
            os.close(segment)
        with ranks:
            ranks.answers()
            rates = take_turns({name: ranks.turn(name, net) for name in ("checked", "bare")}, net.num_blocks)
            found = ranks.last_answers()
    assert found[0]["digest"] == found[1]["digest"], "ranks ended with different weights"
    assert found[0]["num_lines"] == found[0]["num_checked"], f"{found[0]['num_lines']} steps were reported"
    step_s = [1 / rate for rate in rates["bare"].wall]
    bare, checked = ([1 / (seconds + more_s) for seconds in step_s] for more_s in (0.0, found[0]["checking_s"]))
    return [
        compare_both(f"{net.title}, checks and figures / none", rates["checked"], rates["bare"], 1 - MOST, "steps/s"),
        compare(f"{net.title}, their time alone added / none", checked, bare, "steps/s", 1 - MOST),
    ]
