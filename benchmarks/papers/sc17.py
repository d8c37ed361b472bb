"""SC17's EASGD figures: `python benchmarks/papers/sc17.py`. All figures are simulated.

Eight GPUs: Original EASGD is `round-robin-easgd` at a center on the host. Sync EASGD1 is `sync-easgd` by a tree, EASGD2
the same over links between GPUs, EASGD3 behind the step. A KNL cluster: `sync-easgd` at every step on 2 to 64 nodes,
and strategies that wait less.
"""

import sys

from paper_nets import counted, of_size, taking
from paper_rows import FITTED, OURS, PUBLISHED, Input, PaperRow, show

from samovar.predict.cluster import OWN_NODES, Cluster, NetworkSpec, ServerSpec, WorkerSpec
from samovar.predict.prediction import Question, predicted
from samovar.report.comparison import Prediction

GPUS, ALEXNET_BYTES = 8, 249e6
ORIGINAL_SHARE, FIRST_STEP, SECOND_STEP, THIRD_STEP, WHOLE = 0.87, 3.7, 1.3, 1.1, 5.3
LAST_SHARE = 0.14
LINK = 6e9
EVERY_STEP = {"sync_period_steps": 1}
NODES, ONE_NODE_S, ITERATIONS = (2, 4, 8, 16, 32, 64), 1533.0, 300
ON_TWO = 0.964


def found(net_s: float, cluster: Cluster, strategy: str, **settings: object) -> Prediction:
    collective = str(settings.pop("collective", "tree"))
    net = of_size("AlexNet", ALEXNET_BYTES, 64, net_s)
    return predicted(Question(net, cluster, (GPUS,), (strategy,), 64, False, collective, settings | EVERY_STEP))[0]


def gpus(bandwidth: float) -> Cluster:
    return Cluster("8 GPUs", network=NetworkSpec(bandwidth, ports="half-duplex"), server=ServerSpec(OWN_NODES, 1, 1e12))


def chain() -> tuple[list[PaperRow], list[Input]]:
    """Every link but the host's is fitted, and so is the work that Sync EASGD adds; only the overlap is predicted."""
    exchange_s = GPUS * 2 * ALEXNET_BYTES / LINK  # workers compute while others exchange
    compute_s = exchange_s * (1 - ORIGINAL_SHARE)
    updating_s = exchange_s / WHOLE * (1 - LAST_SHARE) - compute_s
    sync_s = compute_s + updating_s
    original = found(compute_s, gpus(LINK), "round-robin-easgd")
    tree_link, device_link = (
        6 * ALEXNET_BYTES / (exchange_s / gain - sync_s) for gain in (FIRST_STEP, FIRST_STEP * SECOND_STEP)
    )
    first = found(sync_s, gpus(tree_link), "sync-easgd", overlap="none")
    second = found(sync_s, gpus(device_link), "sync-easgd", overlap="none")
    third = found(sync_s, gpus(device_link), "sync-easgd", overlap="step")
    ours = found(sync_s, gpus(device_link), "sync-easgd", overlap="period", collective="auto")
    rows = [
        PaperRow("Original: communication's share", 1 - compute_s / original.step_s, ORIGINAL_SHARE, is_fitted=True),
        PaperRow("EASGD1 against Original", original.step_s / first.step_s, FIRST_STEP, is_fitted=True),
        PaperRow("EASGD2 against EASGD1", first.step_s / second.step_s, SECOND_STEP, is_fitted=True),
        PaperRow("EASGD3 against EASGD2, the gain of overlap", second.step_s / third.step_s, THIRD_STEP, 0.20),
        PaperRow("EASGD3 against Original", original.step_s / third.step_s, WHOLE, is_fitted=True),
        PaperRow("EASGD3: communication's share", 1 - sync_s / third.step_s, LAST_SHARE, is_fitted=True),
        PaperRow("our sync-easgd against Original", original.step_s / ours.step_s, at_least=WHOLE),
    ]
    inputs = [
        Input("AlexNet's weights", "249 MB", PUBLISHED),
        Input("link of the host", f"{LINK / 1e9:g} GB/s", OURS),
        Input("computation of a step", f"{compute_s * 1e3:.0f} ms, from Original's share, 87 %", FITTED),
        Input("updates of Sync EASGD", f"{updating_s * 1e3:.0f} ms, from 5.3 times and EASGD3's share, 14 %", FITTED),
        Input("links of the tree", f"{tree_link / 1e9:.1f} GB/s, from EASGD1's 3.7 times", FITTED),
        Input("links between GPUs", f"{device_link / 1e9:.1f} GB/s, from EASGD2's 1.3 times", FITTED),
    ]
    return rows, inputs


def weak_scaling() -> tuple[list[PaperRow], list[Input]]:
    """Jitter is fitted to two nodes. Efficiency is the mean step of one node against that of many."""
    network = NetworkSpec(8e9, 1.5e-6, 1e-6)
    jitter = fitted_jitter()
    net = taking(counted("googlenet"), 32, ONE_NODE_S / ITERATIONS / (1 + jitter / 2))
    cluster = Cluster("KNL", worker=WorkerSpec(jitter=jitter), network=network)

    def efficiencies(strategy: str, nodes: tuple[int, ...], **settings: object) -> list[float]:
        steps = predicted(Question(net, cluster, nodes, (strategy,), 32, settings=settings))
        return [ONE_NODE_S / ITERATIONS / one.step_s for one in steps]

    theirs = efficiencies("sync-easgd", NODES, **EVERY_STEP, overlap="none")
    ours = {
        "sync-easgd, every 32 steps": efficiencies("sync-easgd", (64,), sync_period_steps=32)[0],
        "shm-easgd, every 8 steps": efficiencies("shm-easgd", (64,), sync_period_steps=8)[0],
    }
    rows = [
        PaperRow("GoogLeNet, 2 nodes, efficiency", theirs[0], ON_TWO, is_fitted=True),
        *(
            PaperRow(f"GoogLeNet, {nodes} nodes, efficiency", value, published, 0.20)
            for nodes, value, published in zip(NODES[1:], theirs[1:], (0.953, 0.934, 0.940, 0.923, 0.916), strict=True)
        ),
        *(PaperRow(f"ours, 64 nodes, {name}, efficiency", value) for name, value in ours.items()),
        PaperRow("ours, 64 nodes, the best of these, efficiency", max(ours.values()), at_least=0.96),
    ]
    inputs = [
        Input("seconds of 300 steps on one node", "1,533 (from memory)", PUBLISHED),
        Input("network", "8 GB/s, 1.5 us", OURS),
        Input("jitter", f"{jitter:.1%}, from the row with 2 nodes", FITTED),
    ]
    return rows, inputs


def fitted_jitter() -> float:
    """With even draws up to j, a step of the slower of two takes 1 + 2 j / 3, a mean one 1 + j / 2."""
    longer = 1 / ON_TWO
    return (longer - 1) / (2 / 3 - longer / 2)


def main() -> int:
    chain_rows, chain_inputs = chain()
    weak_rows, weak_inputs = weak_scaling()
    return show("EASGD on GPUs and KNL", chain_inputs + weak_inputs, chain_rows + weak_rows)


if __name__ == "__main__":
    sys.exit(main())
