"""The sentences that a run shows, made from records."""

import math
from collections.abc import Iterable

from samovar.report.records import Progress, Started, Tested
from samovar.report.result import RunResult

_SHOWN_HASH_DIGITS = 8
_SHOWN_RANKS = 4


def start_lines(started: Started) -> list[str]:
    """The plan of the run; the first two lines name the net and its training."""
    learning_rate = f"lr {started.base_lr:g} ({started.lr_policy})"
    data = f"{started.data_name} {started.num_train_samples:,} train / {started.num_test_samples:,} test"
    workers = f"{counted(started.workers, 'worker')} x {counted(started.threads_per_worker, 'thread')}"
    batch = f"batch {started.batch_per_worker:,} each, {started.effective_batch:,} effective"
    lines = [
        " · ".join([started.net_name, counted(started.num_parameters, "parameter"), data]),
        " · ".join([workers, batch, learning_rate, _strategy(started)]),
        f"{_iterations(started)} · {pinning(started.worker_cpus)}",
    ]
    return [*lines, f"run folder {started.run_folder}"] if started.run_folder is not None else lines


def progress_line(progress: Progress) -> str:
    """A line of progress without a terminal."""
    parts = [step_of(progress), f"loss {number(progress.loss)}", f"lr {progress.learning_rate:.4g}"]
    return " · ".join([*parts, *speed(progress), *filter(None, [progress.workers])])


def step_of(progress: Progress) -> str:
    return f"step {progress.step}/{progress.total_steps}"


def speed(progress: Progress) -> list[str]:
    """Samples per second, and the remaining time if there is some."""
    parts = [f"{rate(progress.samples_per_second)} samples/s"]
    if progress.eta_s is not None and progress.step < progress.total_steps:
        parts.append(f"{duration(progress.eta_s)} left")
    return parts


def rate(samples_per_second: float) -> str:
    """Whole samples, or two digits of few."""
    is_whole = samples_per_second >= 10 or not math.isfinite(samples_per_second)
    return f"{samples_per_second:,.0f}" if is_whole else f"{samples_per_second:.2g}"


def test_line(tested: Tested) -> str:
    figures = [f"{name} {number(value)}" for name, value in tested.outputs.items()]
    if tested.loss is not None and tested.loss not in tested.outputs.values():
        figures.append(f"all losses {number(tested.loss)}")
    which = f" of net {tested.net}" if tested.net else ""
    when = "" if tested.step is None else f" at step {tested.step}"
    return " · ".join([f"test{which}{when}", *figures])


def end_lines(result: RunResult, run_folder: str | None, files: list[str]) -> list[str]:
    """How the run ended; `files` are those in the run folder."""
    took = f"{result.seconds:.1f} s" if result.seconds < 60 else duration(result.seconds)
    parts = [] if result.stopped_by is None else [f"stopped by {result.stopped_by} after step {result.steps}"]
    parts += [*_quality(result), _weights(result), *_workers_of(result), took]
    if result.peak_memory_bytes:
        parts.append(f"{max(result.peak_memory_bytes) / (1 << 20):,.0f} MiB a worker")
    lines = [" · ".join(parts)]
    if run_folder is not None:
        lines.append(f"run folder {run_folder}" + (f"   ({', '.join(files)})" if files else ""))
    return lines


def pinning(worker_cpus: tuple[tuple[int, ...], ...]) -> str:
    """The places of ranks: "rank 0 on cpu 0-3, rank 1 on cpu 4-7"; the middle of many is left out."""
    if not any(worker_cpus):
        return "not pinned to cpus"
    texts = [
        f"rank {rank} on {f'cpu {cpu_ranges(cpus)}' if cpus else 'any cpu'}" for rank, cpus in enumerate(worker_cpus)
    ]
    if len(texts) > _SHOWN_RANKS:
        texts = [*texts[: _SHOWN_RANKS - 1], "...", texts[-1]]
    return ", ".join(texts)


def cpu_ranges(cpus: tuple[int, ...]) -> str:
    """Cpu numbers as Linux writes them: 0-3,8."""
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs_of(cpus))


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as in a sentence: 0 to 3, 8 and 9."""
    runs = (map(str, run) if len(run) < 3 else [f"{run[0]} to {run[-1]}"] for run in runs_of(numbers))
    words = [word for run in runs for word in run]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def runs_of(numbers: Iterable[int]) -> list[list[int]]:
    """The numbers in their order, those that follow each other together."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def number(value: float) -> str:
    """Four digits after the point, or powers of ten for very small and large values."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    return f"{value:.4g}" if abs(value) < 0.01 or abs(value) >= 10000 else f"{value:.4f}"


def duration(seconds: float) -> str:
    """H:MM:SS, or M:SS below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _strategy(started: Started) -> str:
    parts = [f"{started.strategy} over {started.transport}", started.collective, started.buckets]
    return ", ".join(filter(None, parts))


def _iterations(started: Started) -> str:
    if not started.how:
        return counted(started.iterations, "iteration")
    return f"iterations {started.start_step:,} to {started.iterations:,}, {started.how}"


def _quality(result: RunResult) -> list[str]:
    if result.test_accuracy is not None:
        return [f"test accuracy {result.test_accuracy:.4f}"]
    if result.test_loss is not None:
        return [f"test loss {number(result.test_loss)}"]
    return [] if result.train_loss is None else [f"training loss {number(result.train_loss)}"]


def _weights(result: RunResult) -> str:
    text = f"weights {result.weights_sha256[:_SHOWN_HASH_DIGITS]}…"
    if result.replicas_equal is None or result.workers == 1:
        return text
    ranks = "both ranks" if result.workers == 2 else f"all {result.workers} ranks"
    return f"{text} equal on {ranks}" if result.replicas_equal else f"{text} NOT equal on {ranks}"


def _workers_of(result: RunResult) -> list[str]:
    """The steps of workers that do not wait for each other: "188 (rank 3) to 212 (rank 0) steps a worker"."""
    steps = [worker.steps for worker in result.by_worker]
    if len(steps) < 2:
        return []
    least, most = (f"{of(steps)} (rank {steps.index(of(steps))})" for of in (min, max))
    range_of = f"{steps[0]}" if min(steps) == max(steps) else f"{least} to {most}"
    restarts = sum(worker.restarts for worker in result.by_worker)
    return [f"{range_of} steps a worker", *([counted(restarts, "restart")] if restarts else [])]
