"""Strategies by name."""

from collections.abc import Callable, Sequence

from samovar.collectives.engine import Collectives, WindowCollectives
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.layout import Bucket
from samovar.strategies.base import Buffers, Strategy
from samovar.strategies.broadcast_easgd import BroadcastEasgd
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved
from samovar.strategies.diloco import DiLoCo, Outer
from samovar.strategies.local_sgd import LocalSgd
from samovar.strategies.owned import OwnedSync, spread_owners
from samovar.strategies.sync import Sync
from samovar.strategies.sync_easgd import Elastic, SyncEasgd


def build_strategy(
    config: StrategyConfig,
    collectives: Collectives,
    buckets: Sequence[Bucket],
    buffers: Buffers,
    deadline: Callable[[], Deadline],
) -> Strategy:
    """The strategy `config.name` on this rank's buffers; every wait of it ends by `deadline()`.

    Raises InputError where the settings do not fit the number of workers.
    """
    config = resolved(config, collectives.group.world_size)
    if config.has_owners:
        return _with_owners(config, collectives, buckets, buffers, deadline)
    if config.name == "sync":
        return Sync(collectives, buckets, buffers.gradients, config.overlap == "backward", deadline)
    assert config.sync_period_steps is not None
    local = (collectives, buckets, buffers.weights, config.sync_period_steps)
    match config.name:
        case "local-sgd":
            return LocalSgd(*local, deadline)
        case "diloco":
            assert config.outer_rate is not None
            assert config.outer_momentum is not None
            return DiLoCo(*local, Outer(config.outer_rate, config.outer_momentum), deadline)
    assert config.name == "sync-easgd", config.name
    assert config.moving_rate is not None
    if config.variant == "broadcast":
        return BroadcastEasgd(*local, config.moving_rate, deadline)
    assert config.overlap is not None
    return SyncEasgd(*local, Elastic(config.moving_rate, config.overlap), deadline)


def _with_owners(
    config: StrategyConfig,
    collectives: Collectives,
    buckets: Sequence[Bucket],
    buffers: Buffers,
    deadline: Callable[[], Deadline],
) -> OwnedSync:
    if not isinstance(collectives, WindowCollectives):
        raise InputError(
            "--overlap full: needs windows that every rank can write to, and between hosts there are none yet; "
            "choose --overlap backward"
        )
    world_size = collectives.group.world_size
    owners = [0] * len(buckets) if config.owner == "root" else spread_owners(buckets, world_size)
    return OwnedSync(collectives, buckets, buffers, owners, deadline)
