"""Strategies by name."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from samovar.collectives.engine import Collectives
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.layout import Bucket
from samovar.strategies.base import Buffers, CenterSeat, Place, Strategy, kind_of
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved
from samovar.strategies.factors import Factoring
from samovar.strategies.hybrid_easgd import GroupMembers, HybridEasgd
from samovar.strategies.trial import TrialCallback


def build_strategy(
    config: StrategyConfig,
    collectives: Collectives,
    buckets: Sequence[Bucket],
    buffers: Buffers,
    deadline: Callable[[], Deadline],
    seat: CenterSeat | None = None,
    callback: TrialCallback | None = None,
    factoring: Factoring | None = None,
) -> Strategy:
    """The strategy `config.name` on this rank's buffers; every wait of it ends by `deadline()`.

    `seat` is this worker's at the center, where `config.needs_center`; see `Place`. Raises InputError if the
    settings do not fit the number of workers.
    """
    if config.needs_center and seat is None:
        raise InputError(f"{config.name}: needs a center that workers share, and here is none; choose sync-easgd")
    num_workers = (seat.num_workers if seat else None) or collectives.group.world_size
    chosen = resolved(config, num_workers)
    told = callback or TrialCallback()
    place = Place(chosen, num_workers, collectives, tuple(buckets), buffers, deadline, seat, told, factoring)
    kind = kind_of(config.name)
    made = kind.of(place)
    if not isinstance(made, kind) and "of" not in vars(kind):
        raise InputError(
            f"{config.name}: with these settings its base class makes a {type(made).__name__}, which has nothing of "
            f"{kind.__name__}; leave them out, or override `of`"
        )
    return made


def build_hybrid(
    config: StrategyConfig,
    members: GroupMembers,
    buckets: Sequence[Bucket],
    buffers: Buffers,
    deadline: Callable[[], Deadline],
    seat: CenterSeat,
) -> HybridEasgd:
    """`hybrid-easgd` for a worker of these members, whose gradients are summed elsewhere than in `buffers`.

    `seat.num_workers` counts groups: each is one worker to the center.
    """
    assert seat.num_workers is not None, seat
    chosen = resolved(replace(config, group_size=1, factors=None), seat.num_workers)
    place = Place(chosen, seat.num_workers, None, tuple(buckets), buffers, deadline, seat)
    return HybridEasgd(place, members)
