"""A run's workers on the cores of this machine."""

from dataclasses import replace

from samovar.config import RunConfig
from samovar.launch.placement import place


def placed(config: RunConfig, workers: int, threads_per_worker: int | None) -> RunConfig:
    """`config` with so many workers; they get cores to spare where an exchange is to run behind the computation."""
    overlaps = config.strategy.overlap in ("backward", "full")
    placement = place(max(1, workers), threads_per_worker, with_spare=overlaps)
    return replace(
        config,
        workers=workers,
        threads_per_worker=placement.threads_per_worker,
        cpus=placement.cpus,
        oversubscribed=placement.oversubscribed,
    )
