"""ShmCaffe's speed-ups: `python benchmarks/papers/shmcaffe.py`. All figures are simulated.

16 GPUs on 4 nodes, a Soft Memory Box on a server of its own. ShmCaffe-A is `shm-easgd` at every step, ShmCaffe-H is
`hybrid-easgd` with groups of 4, Caffe-MPI is `sync` by the plan `server`. The product's own code runs all three.

In the simulation workers come to the box one after the other, and their pushes hide behind the computation. A and H are
therefore faster than they were measured: a queue at 6.7 GB/s does not explain all that the paper saw.
"""

import sys
from collections.abc import Callable

from paper_nets import counted, of_size, taking
from paper_rows import FITTED, OURS, PUBLISHED, Input, PaperRow, show

from samovar.predict.cluster import OWN_NODES, Cluster, NetworkSpec, NodeSpec, ServerSpec, WorkerSpec
from samovar.predict.prediction import Question, predicted
from samovar.report.comparison import Prediction
from samovar.report.profile import Profile

IMAGES, EPOCHS, BATCH, GPUS = 1_281_167, 15, 60, 16
ALONE_H = 23.0
SMB_BYTES_PER_S, SMB_MEMORY = 6.7e9, 60e9
ALONE_S = ALONE_H * 3600 / (EPOCHS * IMAGES / BATCH)
LARGE_BYTES, LARGE_S = 214e6, 0.55
VGG_BYTES, VGG_S = 553e6, 0.1949
H_SHARE_OF_LARGE = 0.307
MPI_TO_H = 5.3  # Caffe-MPI's communication takes so many times as long as that of H
EVERY_STEP = {"sync_period_steps": 1, "read_first": True}


def cluster(inside: float, network: float = SMB_BYTES_PER_S, ports: str = "half-duplex") -> Cluster:
    return Cluster(
        "ShmCaffe",
        worker=WorkerSpec(jitter=0.04),
        node=NodeSpec(4, inside, 10e-6),
        network=NetworkSpec(network, 2e-6, 1e-6, ports),
        server=ServerSpec(OWN_NODES, 1, SMB_MEMORY),
    )


def found(net: Profile, machine: Cluster, strategy: str, workers: int = GPUS, **settings: object) -> Prediction:
    collective = str(settings.pop("collective", "auto"))
    return predicted(Question(net, machine, (workers,), (strategy,), BATCH, False, collective, settings))[0]


def share(one: Prediction) -> float:
    return 1 - (one.forward_s + one.backward_s + one.update_s) / one.step_s


def fitted(of: Callable[[float], float], least: float, most: float, wanted: float) -> float:
    """The bandwidth at which a falling figure is what was published."""
    for _ in range(12):
        middle = (least * most) ** 0.5
        least, most = (middle, most) if of(middle) > wanted else (least, middle)
    return (least * most) ** 0.5


def main() -> int:
    inception = taking(counted("googlenet"), BATCH, ALONE_S)
    large = of_size("Inception-ResNet-v2", LARGE_BYTES, BATCH, LARGE_S)
    vgg = of_size("VGG-16", VGG_BYTES, BATCH, VGG_S)

    def h_share(inside: float) -> float:
        return share(found(large, cluster(inside), "hybrid-easgd", **EVERY_STEP, group_size=4))

    inside = fitted(h_share, 0.5e9, 50e9, H_SHARE_OF_LARGE)
    machine = cluster(inside)
    a = found(inception, machine, "shm-easgd", **EVERY_STEP)
    h = found(inception, machine, "hybrid-easgd", **EVERY_STEP, group_size=4)
    h_communication_s = ALONE_S * (GPUS / 10.1 - 1)

    def mpi_s(network: float) -> float:
        return found(inception, cluster(network, network), "sync", collective="server", overlap="none").exchange_s

    network = fitted(mpi_s, 0.2e9, 20e9, MPI_TO_H * h_communication_s)
    mpi = found(inception, cluster(network, network), "sync", collective="server", overlap="none")
    ours = {name: found(inception, machine, name) for name in ("sync", "sync-easgd", "shm-easgd")}
    best = max(ours.values(), key=lambda one: one.speed_up)
    a_large = share(found(large, machine, "shm-easgd", **EVERY_STEP))
    vgg_two = found(vgg, machine, "shm-easgd", 2, **EVERY_STEP)
    in_order = a.speed_up > h.speed_up > mpi.speed_up
    rows = [
        PaperRow("A, Inception-v1, times one GPU", a.speed_up, 11.5, 0.15),
        PaperRow("H, Inception-v1, times one GPU", h.speed_up, 10.1, 0.15),
        PaperRow("Caffe-MPI, Inception-v1, times one GPU", mpi.speed_up, 3.6, is_fitted=True),
        PaperRow("A > H > Caffe-MPI (1 is yes)", float(in_order), at_least=1),
        PaperRow("A, communication's share, 214 MB", a_large, 0.65, is_fitted=True),
        PaperRow("H, communication's share, 214 MB", h_share(inside), H_SHARE_OF_LARGE, is_fitted=True),
        PaperRow("A, communication's share, Inception-v1, 16 GPUs", share(a), 0.26),
        PaperRow("A, VGG-16, 2 GPUs, times one GPU", vgg_two.speed_up, at_most=1.2),
        PaperRow(f"ours, {best.strategy}, times one GPU", best.speed_up, at_least=13),
        PaperRow(f"ours, {best.strategy}, communication's share", share(best), at_most=0.2),
    ]
    return show("ShmCaffe", inputs_of(inside, network), rows)


def inputs_of(inside: float, network: float) -> list[Input]:
    return [
        Input("SMB's bandwidth, reads and writes together", "6.7 GB/s", PUBLISHED),
        Input("seconds of a step of one GPU", f"{ALONE_S:.3f} s, from 23 h for 15 epochs", PUBLISHED),
        Input("214 MB net, seconds of a step", "0.55 s, derived from A's share", FITTED),
        Input("VGG-16, seconds of a step", "0.195 s, of two at 389.8 ms", PUBLISHED),
        Input("bandwidth between GPUs of a node", f"{inside / 1e9:.2f} GB/s, from H's share on 214 MB", FITTED),
        Input("Caffe-MPI's bandwidth", f"{network / 1e9:.2f} GB/s, from its 5.3 times H's communication", FITTED),
        Input("layers of Inception-v1", "the zoo's GoogLeNet", OURS),
        Input("jitter, SMB's memory", "4 %, 60 GB/s", OURS),
    ]


if __name__ == "__main__":
    sys.exit(main())
