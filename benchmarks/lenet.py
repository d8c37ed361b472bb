"""LeNet, batch 64: one worker against a plain torch loop, two workers against the same two without exchange."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from figures import Figure, compare_both
from ranks import FOLDER, Net, Ranks, Rates, own_cpus, take_turns

from samovar.core.host import num_available_cpus
from samovar.data.digits import write_digits
from samovar.transports.shm import create_segment

SOLVER = FOLDER.parent / "examples" / "lenet" / "digits_solver.prototxt"
LENET = Net("lenet", "LeNet", 64, 1, 28, 25, 24)


def run(short: bool = False) -> list[Figure]:
    net = LENET.shortened(short)
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        write_digits(Path(folder) / "data")
        one = measure(net, 1, ("ours", "torch"), folder)
        figures = [compare_both("LeNet b64, 1 worker x 1 thread / plain torch loop", one["ours"], one["torch"], 1.2)]
        if num_available_cpus() < 2:
            return figures
        two = measure(net, 2, ("ours", "off", "alone"), folder)
    return [
        *figures,
        compare_both("LeNet b64, 2 workers / the same two, exchange off", two["ours"], two["off"], 0.93),
        compare_both("LeNet b64, 2 workers / 1 worker", two["ours"], two["alone"], None),
    ]


def measure(net: Net, world_size: int, sides: tuple[str, ...], folder: str) -> dict[str, Rates]:
    """All sides are in the same processes; `alone` is a step of rank 0 while the others wait."""
    segment = create_segment(world_size)
    job = {"solver": str(SOLVER), "folder": folder, "world_size": world_size, "segment": segment, "sides": sides}
    jobs = [{**net.job, **job, "rank": rank, "cpu": cpu} for rank, cpu in enumerate(own_cpus(world_size))]
    with Ranks("lenet_rank.py", jobs, [segment]) as ranks:
        os.close(segment)
        ranks.answers()
        together = replace(net, batch=world_size * net.batch)
        turns = {name: ranks.turn(name, together) for name in sides}
        if "alone" in sides:
            turns["alone"] = ranks.turn("alone", net, count=1)
        rates = take_turns(turns, net.num_blocks)
        if len(set(ranks.last_answers())) > 1:
            raise SystemExit("the ranks ended with different weights")
    return rates
