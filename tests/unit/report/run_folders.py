"""Folders of small runs, written as runs write them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from samovar.core.plain import json_document
from samovar.core.trace import Span
from samovar.report.comparison import Comparison, ForeseenRuns, Prediction
from samovar.report.history import History
from samovar.report.metrics import MetricsWriter
from samovar.report.page import page
from samovar.report.result import RunResult, WorkerFigures, read_result, write_result
from samovar.report.run_folder import RunFolder
from samovar.report.timeline import PartHeader, merge, write_part

BATCH, STEP_S, NUM_PARAMETERS = 64, 0.01, 431_080
PREDICTED_SPEED_UP = {1: 1.0, 2: 1.9, 4: 3.5}


def step_lines(
    folder: Path, first: int, last: int, workers: int = 2, *, has_staleness: bool = False, batch: int = BATCH
) -> None:
    """Steps `first` to `last`, with a test at the end of each hundred. Worker 1 comes last by a fifth of a step."""
    with MetricsWriter(RunFolder(folder).metrics, first - 1) as metrics:
        if first == 1:
            metrics.write(0, "test", {"accuracy": 0.1, "loss": 2.3})
        for step in range(first, last + 1):
            shares = {"data": 0.05, "forward": 0.2, "backward": 0.4, "exchange": 0.3, "update": 0.05}
            times = {f"{kind}_s": share * STEP_S for kind, share in shares.items()}
            late = {"last_rank": 1, "late_s": 0.2 * STEP_S} if workers > 1 else {}
            values = {"loss": 2.3 / step, "samples": batch * workers, "seconds": STEP_S, **times, **late}
            metrics.write(step, "train", values)
            if step % 100 == 0:
                metrics.write(step, "test", {"accuracy": 1 - 10 / step, "loss": 3.0 / step})
        if has_staleness:
            rows = [[0, 6, 3, 1], [2, 6, 2, 0]]
            metrics.write(last, "workers", {"steps": [last, last], "staleness": rows})


def run_folder(folder: Path, strategy: str = "sync", workers: int = 2, *, net: str = "LeNet", steps: int = 300) -> Path:
    """A run that has ended, with all its files."""
    folder.mkdir(parents=True)
    files = RunFolder(folder)
    config = {
        "model": "net.prototxt",
        "workers": workers,
        "strategy": {"name": strategy, "moving_rate": 0.5},
        "seed": 3,
    }
    files.config.write_text(json.dumps(config))
    step_lines(folder, 1, steps, workers, has_staleness=strategy.startswith("async"))
    files.log.write_text(
        f"2026-11-24T20:00:00.000+00:00 step {steps}/{steps} · loss 0.0077\n"
        "2026-11-24T20:00:01.000+00:00 where the time went: data 5%: straggler-bound; see its cpus\n"
    )
    write_trace(files, workers)
    write_result(files.result, result_of(strategy, workers, net, steps))
    return folder


def result_of(strategy: str, workers: int, net: str = "LeNet", steps: int = 300) -> RunResult:
    own: dict[str, Any] = {"steps": steps, "samples": 1, "samples_per_second": 1.0, "loss": None, "lock_wait_s": 0.0}
    by_worker = tuple(
        WorkerFigures(**own, updates=10, staleness=row, distance=None, is_gone=False)
        for row in ((0, 6, 3, 1), (2, 6, 2, 0))
    )
    return RunResult(
        net=net,
        net_parameters=NUM_PARAMETERS,
        strategy=strategy,
        collective="ring",
        transport="shm",
        workers=workers,
        threads_per_worker=1,
        effective_batch=BATCH * workers,
        steps=steps,
        samples=BATCH * workers * steps,
        seconds=STEP_S * steps,
        samples_per_second=BATCH / STEP_S * PREDICTED_SPEED_UP[workers] * 0.9,
        train_loss=2.3 / steps,
        test_loss=3.0 / steps,
        test_accuracy=1 - 10 / steps,
        weights_sha256="0123456789abcdef",
        replicas_equal=True,
        bytes_sent_per_step=1_724_320.0,
        stopped_by=None,
        versions={"samovar": "0.1.0"},
        bucket_sizes_bytes=(1_724_320,),
        by_worker=by_worker if strategy.startswith("async") else (),
    )


def write_trace(files: RunFolder, workers: int) -> None:
    """Four steps of each rank."""
    for rank in range(workers):
        spans = []
        for number in range(1, 5):
            start = number * STEP_S
            spans += [
                Span("step", f"step {number}", start, start + STEP_S),
                Span("forward", "forward", start, start + 0.3 * STEP_S),
                Span("forward", "conv1 & <more>", start, start + 0.2 * STEP_S),
                Span("exchange", "bucket 0", start + 0.3 * STEP_S, start + 0.9 * STEP_S),
                Span("in flight", "bucket 1", start + 0.3 * STEP_S, start + 0.9 * STEP_S),
            ]
        write_part(files.trace_part(rank), PartHeader(rank, 0.0, 0, STEP_S), spans)
    merge([files.trace_part(rank) for rank in range(workers)], files.trace, {})
    for rank in range(workers):
        files.trace_part(rank).unlink()


def prediction(
    path: Path,
    strategies: tuple[str, ...] = ("sync", "async-easgd"),
    parameters: int = NUM_PARAMETERS,
    batch_size: int = BATCH,
) -> Path:
    """An answer of `samovar predict --json`."""
    rows = [
        Prediction(
            strategy=strategy,
            workers=workers,
            settings="",
            plan="ring",
            num_buckets=1,
            step_s=workers * STEP_S / speed_up,
            samples_per_s=BATCH / STEP_S * speed_up,
            speed_up=speed_up,
            efficiency=speed_up / workers,
            forward_s=0.3 * STEP_S,
            backward_s=0.5 * STEP_S,
            update_s=0.1 * STEP_S,
            slower_s=0.0,
            exchange_s=0.05 * STEP_S,
            bytes_per_step=1_700_000.0,
            limit="computation",
            staleness=None,
            hours=None,
            price=None,
            price_per_million=None,
        )
        for strategy in strategies
        for workers, speed_up in PREDICTED_SPEED_UP.items()
    ]
    batch = {"batch_size": batch_size, "shares_batch": False}
    answer = {"net": "LeNet", "parameters": parameters, "cluster": "two machines", "predictions": rows, **batch}
    path.write_text(json_document(answer))
    return path


def page_of(*folders: Path, foreseen: ForeseenRuns | None = None, is_live: bool = False) -> str:
    return page(Comparison.of([History(folder).look() for folder in folders], foreseen), is_live=is_live)


def headings(text: str) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", text)


def verdict(text: str) -> str:
    return re.findall("<h1>(.*?)</h1>", text)[0]


def changed_result(folder: Path, **figures: Any) -> Path:
    files = RunFolder(folder)
    write_result(files.result, replace(read_result(files.result), **figures))
    return folder
