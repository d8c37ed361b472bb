"""CaffeGPI's schedule against two others, 2 to 64 nodes: `python benchmarks/papers/caffegpi.py`. All is simulated.

The paper gives no figure that could be confirmed, so only the order is shown. CaffeGPI is layer-wise exchange with one
root (`sync --overlap full --owner root`). FireCaffe-like is a tree after the backward pass, NCCL-like a ring after it.
Times of a step of one node are published by the same authors.
"""

import sys
from typing import Any

from paper_nets import counted, taking
from paper_rows import OURS, PUBLISHED, Input, PaperRow, show

from samovar.predict.cluster import Cluster, NetworkSpec
from samovar.predict.prediction import Question, predicted

NODES = (2, 4, 8, 16, 32, 64)
STEPS = {"alexnet": (256, 0.9), "googlenet": (32, 0.36)}  # K80, arXiv 1609.06870, table I
SCHEDULES: dict[str, tuple[str, dict[str, Any]]] = {
    "CaffeGPI": ("auto", {"overlap": "full", "owner": "root", "bucket_size_bytes": 1}),
    "FireCaffe-like": ("tree", {"overlap": "none"}),
    "NCCL-like": ("ring", {"overlap": "none"}),
}


def main() -> int:
    cluster = Cluster("FDR", network=NetworkSpec(5e9, 0.7e-6, 1e-6))
    rows: list[PaperRow] = []
    for name, (batch, step_s) in STEPS.items():
        net = taking(counted(name), batch, step_s)
        steps = {
            schedule: predicted(Question(net, cluster, NODES, ("sync",), batch, False, collective, settings))
            for schedule, (collective, settings) in SCHEDULES.items()
        }
        best = predicted(Question(net, cluster, NODES, ("sync", "sync-easgd"), batch))
        for place, nodes in enumerate(NODES):
            ours = min(one.step_s for one in best if one.workers == nodes)
            theirs = {schedule: found[place].step_s for schedule, found in steps.items()}
            rows.append(
                PaperRow(
                    f"{name}, {nodes} nodes: FireCaffe-like / CaffeGPI",
                    theirs["FireCaffe-like"] / theirs["CaffeGPI"],
                    at_least=1.0,
                )
            )
            ratio = theirs["NCCL-like"] / theirs["CaffeGPI"]
            rows.append(PaperRow(f"{name}, {nodes} nodes: NCCL-like / CaffeGPI", ratio))
            rows.append(PaperRow(f"{name}, {nodes} nodes: CaffeGPI / ours", theirs["CaffeGPI"] / ours, at_least=1.0))
    inputs = [
        Input("seconds of a step of one K80", "0.9 (AlexNet, 256), 0.36 (GoogLeNet, 32)", PUBLISHED),
        Input("network", "InfiniBand FDR, 5 GB/s, 0.7 us", OURS),
        Input("layers", "the zoo's, by multiply-adds", OURS),
    ]
    return show("CaffeGPI", inputs, rows)


if __name__ == "__main__":
    sys.exit(main())
