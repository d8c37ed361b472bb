"""FireCaffe's tables 2 and 3: `python benchmarks/papers/firecaffe.py`. All figures are simulated.

The time of an update among p GPUs is c / p + k 2 log2(p). c is the published time of one GPU. k is fitted to the row
with 32 GPUs, and gives the network's bandwidth |W| / k. The 128-GPU rows are then predicted: `sync` with one bucket and
the plan `tree`, after the backward pass, by the product's own code.
"""

import sys

from paper_nets import counted, taking
from paper_rows import FITTED, OURS, PUBLISHED, Input, PaperRow, show

from samovar.predict.cluster import Cluster, NetworkSpec
from samovar.predict.prediction import Question, predicted, verdicts
from samovar.strategies.catalog import STRATEGIES

IMAGES, BATCH = 1_281_167, 1024
# Hours of one GPU, and its epochs; hours with 32 and 128 GPUs, and their epochs; the published speed-up with 128.
NETS = {
    "googlenet": (21 * 24, 64, 23.4, 10.5, 72, 47, 0.20),
    "nin": (5.8 * 24, 47, 6.0, 3.6, 47, 39, 0.10),
}
BEST_AT_LEAST = {"googlenet": 90.0, "nin": None}


def main() -> int:
    inputs = [
        Input("images, batch, epochs, hours of 1 and 32 GPUs", "tables 2 and 3 (NiN from memory)", PUBLISHED),
        Input("layers of both nets", "the zoo's, by multiply-adds", OURS),
    ]
    rows: list[PaperRow] = []
    for name in NETS:
        made, fitted = table_of(name)
        rows += made
        inputs.append(fitted)
    return show("FireCaffe", inputs, rows)


def table_of(name: str) -> tuple[list[PaperRow], Input]:
    alone_h, alone_epochs, hours_32, hours_128, epochs, speed_up_128, within = NETS[name]
    updates = epochs * IMAGES / BATCH
    alone_s = alone_h * 3600 / (alone_epochs * IMAGES / BATCH)
    k = (hours_32 * 3600 / updates - alone_s / 32) / 10
    net = taking(counted(name), BATCH, alone_s)
    bandwidth = net.parameter_bytes / k
    cluster = Cluster("fitted", network=NetworkSpec(bandwidth))

    def hours(question: Question) -> list[float]:
        return [one.step_s * updates / 3600 for one in predicted(question)]

    theirs = Question(net, cluster, (32, 128), ("sync",), BATCH, True, "tree", {"overlap": "none"})
    found_32, found_128 = hours(theirs)
    ours = predicted(Question(net, cluster, (128,), STRATEGIES, BATCH, True))
    in_step = next(one for one in ours if one.strategy == "sync")
    best = verdicts(ours)[0]
    best_h = min(one.step_s for one in ours if one.strategy == best.strategy) * updates / 3600
    rows = [
        PaperRow(f"{name}, 32 GPUs, hours", found_32, hours_32, is_fitted=True),
        PaperRow(f"{name}, 128 GPUs, hours", found_128, hours_128, within),
        PaperRow(f"{name}, 128 GPUs, times one GPU", alone_h / found_128, speed_up_128, within),
        PaperRow(
            f"{name}, 128 GPUs, our sync ({in_step.plan}, {in_step.num_buckets} buckets), times one GPU",
            alone_h / (in_step.step_s * updates / 3600),
            at_least=BEST_AT_LEAST[name],
        ),
        PaperRow(f"{name}, 128 GPUs, our fastest, {best.strategy}, times one GPU", alone_h / best_h),
    ]
    fitted = Input(f"bandwidth for {name}", f"{bandwidth / 1e9:.2f} GB/s, from the 1- and 32-GPU rows", FITTED)
    return rows, fitted


if __name__ == "__main__":
    sys.exit(main())
