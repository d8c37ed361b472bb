"""Coarse-grain Caffe's 8x on 16 cores: `python benchmarks/papers/coarse_grain.py`. All figures are simulated.

Threads that divide a batch are workers of one node that share it. Layers are timed here, on one core: with the whole
batch, and with one worker's share of it, where small layers are less efficient. Workers share the memory of the paper's
machine. They add their gradients in order, at one of them, as the paper's threads do: `sync` by the plan `server`.
The product's own code runs there. Nothing is fitted to the 8x.
"""

import sys
from dataclasses import replace
from statistics import median

from paper_nets import ZOO
from paper_rows import OURS, PUBLISHED, Input, PaperRow, show

from samovar.files.net_profile import net_profile
from samovar.predict.cluster import Cluster, NodeSpec, WorkerSpec
from samovar.predict.prediction import Question, predicted
from samovar.predict.work import work_of
from samovar.report.profile import Profile, profile_of

THREADS = (2, 4, 8, 16)
SOCKET_BYTES_PER_S, SOCKETS, CORE_BYTES_PER_S = 59.7e9, 2, 12e9
LATENCY_S = 1e-6
NETS = {"lenet": ("data=64,1,28,28", 64), "cifar10_full": ("data=100,3,32,32", 100)}
ROUNDS = 5
PUBLISHED_GAIN = 8.0  # on both nets, about


def cluster(threads: int) -> Cluster:
    """That number of cores of the machine, which share its memory."""
    memory = min(CORE_BYTES_PER_S, SOCKETS * SOCKET_BYTES_PER_S / threads)
    worker = WorkerSpec(memory=memory, crowded_factor=CORE_BYTES_PER_S / memory, spare_core=False)
    return Cluster("two Xeon E5-2667 v2", worker=worker, node=NodeSpec(threads, memory, LATENCY_S))


def timed(name: str, batch: int) -> Profile:
    """The layers on one core of this machine with that batch: medians of some measurements."""
    shape = NETS[name][0].replace(f"={NETS[name][1]},", f"={batch},")
    found = [
        profile_of(net_profile(ZOO / name / "train_val.prototxt", False, None, 1, True, (shape,))[0])
        for _ in range(ROUNDS)
    ]
    layers = tuple(
        replace(
            same[0],
            forward_s=median(layer.forward_s or 0.0 for layer in same),
            backward_s=median(layer.backward_s or 0.0 for layer in same),
        )
        for same in zip(*(one.layers for one in found), strict=True)
    )
    return replace(found[0], layers=layers, batch_size=batch)


def speed_ups(name: str, strategy: str, collective: str, settings: dict[str, object]) -> list[float]:
    """Of these numbers of threads, against one with the whole batch."""
    batch, found = NETS[name][1], []
    whole = timed(name, batch)
    alone = work_of(whole, cluster(1).worker, batch)
    for threads in THREADS:
        share = max(1, round(batch / threads))
        question = Question(
            timed(name, share), cluster(threads), (threads,), (strategy,), share, False, collective, settings
        )
        rate = predicted(question)[0].samples_per_s
        found.append(rate * alone.step_s / batch)
    return found


def main() -> int:
    rows = []
    for name in NETS:
        theirs = speed_ups(name, "sync", "server", {"overlap": "none"})
        ours = speed_ups(name, "sync", "auto", {})
        rows += [
            *(
                PaperRow(f"{name}, {n} threads, times one", value)
                for n, value in zip(THREADS, theirs[:-1], strict=False)
            ),
            PaperRow(f"{name}, 16 threads, times one", theirs[-1], PUBLISHED_GAIN, 0.20),
        ]
        rows.append(PaperRow(f"{name}, 16 workers, our sync with its own plan, times one", ours[-1]))
    inputs = [
        Input("cores, sockets", "16, 2", PUBLISHED),
        Input("memory bandwidth of a socket", "59.7 GB/s, the processor's data sheet (from memory)", PUBLISHED),
        Input("memory bandwidth of one core, latency", "12 GB/s, 1 us", OURS),
        Input("seconds of layers", "one core of this machine, whole batch and share of it", OURS),
        Input("reading of data", "left out", OURS),
    ]
    return show("Coarse-grain Caffe", inputs, rows)


if __name__ == "__main__":
    sys.exit(main())
