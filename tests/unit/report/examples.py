"""One record of each kind, as a small run gives them."""

from samovar.report.records import Failed, Finished, Notice, Progress, SnapshotWritten, Started, Tested
from samovar.report.result import RunResult

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
FINISHED = Finished(result=RESULT)
FAILED = Failed(rank=3, message="no notification from rank 2", step=17, exit_code=3, kind="DeadlineExceeded")

EVERY_RECORD = [STARTED, PROGRESS, TESTED, SNAPSHOT_WRITTEN, WARNING, FINISHED, FAILED]
