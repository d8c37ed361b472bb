"""A run's workers on the cores of this machine."""

from dataclasses import replace

from samovar.config import RunConfig
from samovar.launch.placement import place


def placed(config: RunConfig, workers: int, threads_per_worker: int | None) -> RunConfig:
    """`config` with so many workers; they get cores to spare where an exchange is to run behind the computation.

    Where other runs may train beside this one (--box), workers are not pinned: each run would take the first cores.
    """
    overlaps = config.strategy.overlap in ("backward", "full")
    placement = place(max(1, workers), threads_per_worker, with_spare=overlaps)
    is_free = config.box is not None and not placement.oversubscribed
    return replace(
        config,
        workers=workers,
        threads_per_worker=placement.threads_per_worker,
        cpus=((),) * workers if is_free else placement.cpus,
        oversubscribed=placement.oversubscribed,
    )
