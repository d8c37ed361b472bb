"""One record of each kind, as a small run gives them."""

from typing import Any

from samovar.report.records import (
    Failed,
    Finished,
    Iterated,
    LastLoss,
    LayerTime,
    Notice,
    Probed,
    Progress,
    SnapshotWritten,
    Started,
    Tested,
    TestedBatch,
    Timed,
    Valued,
    ValueLine,
)
from samovar.report.result import RunResult, WorkerFigures

STARTED = Started(
    net_name="LeNet",
    num_parameters=431080,
    data_name="digits",
    num_train_samples=1437,
    num_test_samples=360,
    workers=2,
    threads_per_worker=1,
    worker_cpus=((0,), (1,)),
    batch_per_worker=64,
    effective_batch=128,
    base_lr=0.01,
    lr_policy="inv",
    strategy="sync",
    collective="ring",
    transport="shm",
    iterations=600,
    start_step=0,
    run_folder=None,
)
PROGRESS = Progress(step=300, total_steps=600, loss=0.0113, learning_rate=0.0098, samples_per_second=5900.4, eta_s=6.6)
TESTED = Tested(step=500, outputs={"accuracy": 0.981, "loss": 0.053})
SECOND_TESTED = Tested(step=500, outputs={"top5": 0.99}, net=1, loss=0.25, loss_weights={"loss": 0.5})
ITERATED = Iterated(
    iteration=20,
    num_iterations=10,
    display=10,
    seconds=2.0,
    loss=0.31,
    learning_rate=0.01,
    outputs={"aux": 0.5, "loss": 0.25, "each[0]": 1.0, "each[1]": 0.0},
    loss_weights={"aux": 0.3, "loss": 1.0},
)
VALUED = Valued(
    lines=(
        ValueLine(kind="top", text="    [Forward] Layer conv1, top blob conv1 data: 1.32768"),
        ValueLine(kind="all", text="    [Backward] All net params (data, diff): L1 norm = (384.67, 101.031)"),
    ),
    is_test=False,
)
LAST_LOSS = LastLoss(step=600, loss=0.0123456)
TESTED_BATCH = TestedBatch(batch=2, outputs={"accuracy": 0.5, "each[1]": 1e-07})
TIMED = Timed(
    net_name="LeNet",
    phase="TRAIN",
    batch_size=64,
    threads=2,
    iterations=2,
    layers=(
        LayerTime(name="train", type="Data", forward_ms=0.5, backward_ms=0.0),
        LayerTime(name="conv1", type="Convolution", forward_ms=3.0, backward_ms=4.5),
        LayerTime(name="ip1", type="InnerProduct", forward_ms=0.5, backward_ms=2.0),
    ),
    forward_ms=3.5,
    backward_ms=6.5,
    iteration_ms=(10.5, 9.5),
    initial_loss=2.3,
)
SNAPSHOT_WRITTEN = SnapshotWritten(step=500, path="runs/a/snapshots/step_00000500")
WARNING = Notice(level="warning", text="moving rate 0.9 is unstable")
RESULT = RunResult(
    net="LeNet",
    net_parameters=431080,
    strategy="sync",
    collective="ring",
    transport="shm",
    workers=2,
    threads_per_worker=1,
    effective_batch=128,
    steps=600,
    samples=76800,
    seconds=13.21,
    samples_per_second=5813.8,
    train_loss=0.0113,
    test_loss=0.045,
    test_accuracy=0.98611,
    weights_sha256="3f9c12ab" * 8,
    replicas_equal=True,
    bytes_sent_per_step=1724320.0,
    stopped_by=None,
    versions={"samovar": "0.1.0", "torch": "2.13.0"},
)
WORKER = WorkerFigures(
    steps=600,
    samples=38400,
    samples_per_second=2900.0,
    loss=0.0113,
    updates=75,
    staleness=(70, 5),
    lock_wait_s=0.1,
    distance=0.02,
    is_gone=False,
)
FINISHED = Finished(result=RESULT)
PROBED = Probed(samples_per_second=1234.5, num_steps=20, stop_signal=0)
FAILED = Failed(rank=3, message="no notification from rank 2", step=17, exit_code=3, kind="DeadlineExceeded")

EVERY_RECORD: list[Any] = [
    *(STARTED, PROGRESS, ITERATED, VALUED, LAST_LOSS, TESTED, SECOND_TESTED, TESTED_BATCH, TIMED, PROBED),
    *(SNAPSHOT_WRITTEN, WARNING, FINISHED, FAILED),
]
