"""Strategies by name."""

from collections.abc import Callable, Sequence

from samovar.collectives.engine import Collectives
from samovar.core.clock import Deadline
from samovar.core.layout import Bucket
from samovar.strategies.base import Buffers, Strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.sync import Sync


def build_strategy(
    config: StrategyConfig,
    collectives: Collectives,
    buckets: Sequence[Bucket],
    buffers: Buffers,
    deadline: Callable[[], Deadline],
) -> Strategy:
    """The strategy `config.name` on this rank's buffers; every wait of it ends by `deadline()`."""
    match config.name:
        case "sync":
            return Sync(collectives, buckets, buffers.gradients, deadline)
        case _:
            raise AssertionError(config.name)
