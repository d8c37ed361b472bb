"""The cost of measuring the parts of a step, with `--trace` off.

The same worker makes steps with its laps and without them, in turn, in one process. The work of measuring is also timed
by itself, and added to the step without laps. That figure is the steadier of the two, and has the bar.
"""

from figures import Figure, compare, compare_both
from ranks import Net, Ranks, own_cpus, take_turns

MOST = 0.01
NETS = (Net("lenet", "LeNet", 32, 1, 28, 40, 60), Net("cifar10_full", "CIFAR-10 full", 50, 3, 32, 10, 40))


def run(short: bool = False) -> list[Figure]:
    return [figure for net in NETS[: 1 if short else None] for figure in figures_of(net.shortened(short))]


def figures_of(net: Net) -> list[Figure]:
    job = {**net.job, "cpu": own_cpus(1)[0]}
    with Ranks("times_rank.py", [job]) as rank:
        rank.answers()
        rates = take_turns({name: rank.turn(name, net) for name in ("laps", "bare")}, net.num_blocks)
        (found,) = rank.last_answers()
    step_s = [net.batch / rate for rate in rates["bare"].cpu]
    bare, measured = ([1 / (seconds + more_s) for seconds in step_s] for more_s in (0.0, found["measuring_s"]))
    title = f"{net.title} b{net.batch}"
    return [
        compare_both(f"{title}, laps / no laps", rates["laps"], rates["bare"], None),
        compare(f"{title}, {found['num_laps']} laps added / no laps", measured, bare, "steps/s", 1 - MOST),
    ]
