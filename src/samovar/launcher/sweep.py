"""`samovar train --workers auto`: short runs of several numbers of workers and threads, to keep the fastest."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samovar.checkpoint.reading import read_manifest
from samovar.config import RunConfig
from samovar.core.errors import InputError, SamovarError
from samovar.core.host import num_available_cpus
from samovar.launch.numa import num_inside, numa_nodes, spread
from samovar.launcher.job import Display, EndedBySignal, run_without_folder
from samovar.launcher.placing import placed
from samovar.report.records import Notice, Probed, Record
from samovar.report.result import SweptSetting
from samovar.report.wording import counted
from samovar.strategies.defaults import resolved

Setting = tuple[int, int]  # workers, threads of each


def sweep_settings(
    node_sizes: Sequence[int], threads_per_worker: int | None = None, most_workers: int | None = None
) -> tuple[Setting, ...]:
    """All workers x threads that fill the cores of NUMA nodes of these sizes, such as 1x16, 2x8, 4x4, 8x2, 16x1.

    With several workers, each is inside a node or has whole nodes. If nodes differ in size, a setting has as many
    threads as there is room for. With `threads_per_worker`, the workers are the divisors of the number that there is
    room for, at least one. No setting has more than `most_workers`, or more threads than cores, unless a single worker
    was given them.
    """
    if threads_per_worker is not None:
        room = num_inside(threads_per_worker, node_sizes) or sum(node_sizes) // threads_per_worker
        counts = _divisors(max(1, room))
        return tuple((count, threads_per_worker) for count in counts if most_workers is None or count <= most_workers)
    per_node = [len(node_sizes) * count for count in _divisors(min(node_sizes))]
    counts = sorted({*_divisors(sum(node_sizes)), *per_node})
    # Of settings with as many threads only the one with the most workers, which leaves the fewest cores idle.
    most = {_threads(count, node_sizes): count for count in counts if most_workers is None or count <= most_workers}
    return tuple(sorted((count, threads) for threads, count in most.items()))


def _threads(num_workers: int, node_sizes: Sequence[int]) -> int:
    threads = sum(node_sizes) // num_workers
    whole_nodes = len(set(node_sizes)) == 1 and threads % node_sizes[0] == 0
    if num_workers == 1 or whole_nodes:
        return threads
    while num_inside(threads, node_sizes) < num_workers:
        threads -= 1
    return threads


def _divisors(number: int) -> list[int]:
    return [count for count in range(1, number + 1) if number % count == 0]


_FLAG = "--workers auto"


def with_fastest_workers(
    config: RunConfig, threads_per_worker: int | None, snapshot: Path | None, display: Display, num_hosts: int = 1
) -> RunConfig:
    """`config` with the workers and threads of the run that saved `snapshot`, else with the fastest of a sweep.

    The sweep is of this host alone, with the whole batch. With --exact K it has at most K / `num_hosts` workers.
    Raises InputError if settings would train differently: the batch of a step and the strategy's rule must not depend
    on the number of workers.
    """
    if snapshot is not None and (earlier := _as_before(config, threads_per_worker, snapshot)) is not None:
        text = f"{_FLAG}: {_named(earlier.workers, earlier.threads_per_worker)}, as the run that saved {snapshot}"
        display.show(Notice(level="info", text=text))
        return earlier
    nodes = numa_nodes()
    most_workers = None if config.exact is None else max(1, config.exact // num_hosts)
    sizes, most = [len(node) for node in nodes], num_available_cpus()
    settings = sweep_settings(sizes if most >= sum(sizes) else [most], threads_per_worker, most_workers)
    if len(settings) > 1:
        _require_same_training(config, settings)
        figures = _sweep(config, settings, display)
    else:
        figures = [SweptSetting(workers=settings[0][0], threads_per_worker=settings[0][1], samples_per_second=None)]
    best = fastest(figures)
    kept = replace(placed(config, best.workers, best.threads_per_worker), sweep=tuple(figures))
    lies = spread(kept.cpus, nodes)
    display.show(Notice(level="info", text=f"{_kept(best)}, {lies}" if lies else _kept(best)))
    return kept


def fastest(figures: Sequence[SweptSetting]) -> SweptSetting:
    """The setting with the most samples per second; of equal ones the first, with the fewest workers."""
    return max(figures, key=lambda figure: figure.samples_per_second or 0.0)


def sweep_lines(figures: Sequence[SweptSetting]) -> list[str]:
    """The table of a sweep and the setting that was kept, as lines; none without a sweep."""
    return [*map(_row, figures), _kept(fastest(figures))] if figures else []


def _require_same_training(config: RunConfig, settings: Sequence[Setting]) -> None:
    if config.strategy.exchanges_weights:
        raise InputError(
            f"{_FLAG}: with --strategy {config.strategy.name} the number of workers changes what is learned; "
            "give a number"
        )
    if not config.shares_batch and config.large_batch is None:
        counts = ", ".join(str(workers) for workers, _ in settings)
        raise InputError(
            f"{_FLAG}: with --batch-mode per-worker the batch of a step grows with the workers ({counts}), and "
            "so do the results. Give a number of workers, or share one batch: --batch-mode global, --exact K or "
            "--large-batch N"
        )


def _sweep(config: RunConfig, settings: Sequence[Setting], display: Display) -> list[SweptSetting]:
    text = f"{_FLAG}: some steps with each of {len(settings)} settings, the whole batch the same in all"
    display.show(Notice(level="info", text=text))
    figures: list[SweptSetting] = []
    for workers, threads in settings:
        rate = _rate(config, workers, threads, is_first=not figures)
        figures.append(SweptSetting(workers=workers, threads_per_worker=threads, samples_per_second=rate))
        display.show(Notice(level="info", text=_row(figures[-1])))
    return figures


def _rate(config: RunConfig, workers: int, threads: int, is_first: bool) -> float | None:
    """Samples per second of a setting; None if the batch cannot be shared by this number of workers."""
    strategy = resolved(config.strategy, workers)
    probe = replace(placed(config, workers, threads), job="probe", iterations=None, snapshot=None, strategy=strategy)
    heard = _Listener()
    try:
        run_without_folder(probe, heard)
    except EndedBySignal:
        raise
    except InputError as error:
        # What one worker refuses is wrong in itself, and a process that the system does not start is no rank's refusal.
        if is_first or isinstance(error.__cause__, OSError):
            raise
        return None
    except SamovarError as error:
        raise SamovarError(f"{_FLAG}: {_named(workers, threads)}: {error}") from error
    if heard.probed is None:
        raise SamovarError(f"{_FLAG}: {_named(workers, threads)}: did not answer")
    if number := heard.probed.stop_signal:
        raise EndedBySignal(f"{_FLAG}: ended by {signal.Signals(number).name}, before training began", number)
    return heard.probed.samples_per_second


@dataclass(slots=True)
class _Listener:
    """Keeps the result of a probe; the run itself repeats its warnings."""

    probed: Probed | None = None

    def show(self, record: Record) -> None:
        if isinstance(record, Probed):
            self.probed = record


def _as_before(config: RunConfig, threads_per_worker: int | None, snapshot: Path) -> RunConfig | None:
    """With the workers and threads of the run that saved `snapshot`; None if it does not say, or they do not fit."""
    if not snapshot.is_dir():
        return None
    saved = read_manifest(snapshot).config
    workers, threads = saved.get("workers"), saved.get("threads_per_worker")
    if not isinstance(workers, int) or not isinstance(threads, int) or workers * threads > num_available_cpus():
        return None
    if threads_per_worker not in (None, threads) or (config.exact is not None and workers > config.exact):
        return None
    return replace(placed(config, workers, threads), sweep=_figures(saved))


def _figures(saved: Mapping[str, object]) -> tuple[SweptSetting, ...]:
    figures = saved.get("sweep")
    return tuple(SweptSetting(**figure) for figure in figures) if isinstance(figures, list) else ()


def _named(workers: int, threads: int) -> str:
    return f"{counted(workers, 'worker')} x {counted(threads, 'thread')}"


def _row(figure: SweptSetting) -> str:
    rate = figure.samples_per_second
    shown = "refused: the batch or memory is too small for it" if rate is None else f"{rate:>10,.1f} samples/s"
    return f"  {_named(figure.workers, figure.threads_per_worker):<24}{shown}"


def _kept(figure: SweptSetting) -> str:
    return f"{_FLAG}: {_named(figure.workers, figure.threads_per_worker)}"
