"""Strategies by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from samovar.collectives.encoded import Codec
from samovar.collectives.engine import Collectives, PlannedCollectives, WindowCollectives
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.layout import Bucket
from samovar.strategies.base import Buffers, Strategy
from samovar.strategies.catalog import AT_A_CENTER, IN_STEP
from samovar.strategies.center_steps import CenterSeat, CenterSteps, Rate, Workplace
from samovar.strategies.compressed import CompressedSync, encoded_buckets
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import default_moving_rate, resolved
from samovar.strategies.factors import FactoredSum
from samovar.strategies.hybrid_easgd import GroupCollectives, GroupMembers, HybridEasgd
from samovar.strategies.local_sgd import LocalPlace
from samovar.strategies.owned import OwnedSync, spread_owners
from samovar.strategies.parts import SyncInParts
from samovar.strategies.shm_easgd import ShmEasgd
from samovar.strategies.sync import Sync, sum_channels
from samovar.strategies.traits import AUTO, MAX_REFUSED_PUSHES
from samovar.strategies.trial import Trial, TrialCallback
from samovar.transports.base import MappedWindow


def build_strategy(
    config: StrategyConfig,
    collectives: Collectives,
    buckets: Sequence[Bucket],
    buffers: Buffers,
    deadline: Callable[[], Deadline],
    seat: CenterSeat | None = None,
    witness: TrialCallback | None = None,
    factored: Mapping[int, FactoredSum] | None = None,
) -> Strategy:
    """The strategy `config.name` on this rank's buffers; every wait of it ends by `deadline()`.

    `seat` is this worker's at the center, where `config.needs_center`; `witness` is told what the strategy finds out
    while it runs; `factored` are the buckets that may travel as factors, by their indices. Raises InputError where the
    settings do not fit the number of workers.
    """
    if config.needs_center:
        if seat is None:
            raise InputError(f"{config.name}: needs a center that workers share, and here is none; choose sync-easgd")
        return _at_center(config, collectives, buckets, buffers, deadline, seat)
    config = resolved(config, collectives.group.world_size)
    if config.divides_updates:
        return _with_divided_updates(config, collectives, buckets, buffers, deadline)
    if not config.exchanges_weights:
        return _sync(config, collectives, buckets, buffers, deadline, witness or TrialCallback(), factored or {})
    assert config.sync_period_steps is not None
    local = LocalPlace(collectives, buckets, buffers.weights, config.sync_period_steps, deadline)
    return IN_STEP[config.name].of(config, local)


def _sync(
    config: StrategyConfig,
    collectives: Collectives,
    buckets: Sequence[Bucket],
    buffers: Buffers,
    deadline: Callable[[], Deadline],
    witness: TrialCallback,
    factored: Mapping[int, FactoredSum],
) -> Sync:
    """One worker sends nothing, and compresses nothing."""
    world_size = collectives.group.world_size
    when = (world_size, config.overlap == "backward", deadline)
    compresses, is_always = config.codec is not None and world_size > 1, config.always_compresses
    plain = [] if compresses and is_always else sum_channels(collectives, buckets, buffers.gradients, factored)
    if config.codec is None or not compresses:
        return Sync(plain, *when)
    encoded = encoded_buckets(collectives, buckets, buffers, Codec(config.codec), factored)
    trial = Trial(collectives, f"--compress {config.codec}", is_always, deadline, witness)
    return CompressedSync(plain, encoded, config.codec, trial, *when)


def _at_center(
    config: StrategyConfig,
    collectives: Collectives,
    buckets: Sequence[Bucket],
    buffers: Buffers,
    deadline: Callable[[], Deadline],
    seat: CenterSeat,
) -> CenterSteps:
    num_workers = seat.num_workers or collectives.group.world_size
    config = resolved(config, num_workers)
    place = _place(config, buckets, buffers, deadline, seat)
    rate = _rate(config, num_workers) if config.traits.is_elastic else Rate(0.0)
    if config.traits.in_groups:
        collectives = _group(config, collectives, buffers)
    elif config.traits.in_turn:
        collectives = _planned(config, collectives)
    return AT_A_CENTER[config.name].of(config, place, rate, collectives)


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
    config = resolved(replace(config, name=ShmEasgd.traits.name, group_size=None, factors=None), seat.num_workers)
    place, rate = _place(config, buckets, buffers, deadline, seat), _rate(config, seat.num_workers)
    return HybridEasgd.among(config, place, rate, members)


def _place(
    config: StrategyConfig,
    buckets: Sequence[Bucket],
    buffers: Buffers,
    deadline: Callable[[], Deadline],
    seat: CenterSeat,
) -> Workplace:
    assert config.sync_period_steps is not None
    most_refused = config.max_refused_pushes or MAX_REFUSED_PUSHES
    return Workplace(seat, buckets, buffers, config.sync_period_steps, deadline, most_refused)


def _rate(config: StrategyConfig, num_workers: int) -> Rate:
    """A moving rate that is the default follows the number of workers."""
    assert config.moving_rate is not None
    is_default = config.moving_rate == default_moving_rate(config, num_workers)
    return Rate(config.moving_rate, partial(default_moving_rate, config) if is_default else None)


def _group(config: StrategyConfig, collectives: Collectives, buffers: Buffers) -> GroupCollectives:
    """Where memory is mapped a group adds up in place."""
    assert config.group_size is not None
    best = "direct" if isinstance(buffers.gradients.window, MappedWindow) else "tree"
    name = best if config.collective == AUTO else config.collective
    return GroupCollectives(_planned(config, collectives), config.group_size, name)


def _planned(config: StrategyConfig, collectives: Collectives) -> PlannedCollectives:
    if not isinstance(collectives, PlannedCollectives):
        raise InputError(
            f"{config.name}: needs windows that every rank can write to, and gloo has none; choose transport tcp, or "
            "async-easgd or shm-easgd"
        )
    return collectives


def _with_divided_updates(
    config: StrategyConfig,
    collectives: Collectives,
    buckets: Sequence[Bucket],
    buffers: Buffers,
    deadline: Callable[[], Deadline],
) -> OwnedSync | SyncInParts:
    flag, other = ("--owner parts", "--owner all") if config.updates_parts else ("--overlap full", "--overlap backward")
    if not isinstance(collectives, WindowCollectives):
        raise InputError(
            f"{flag}: needs windows that every rank can write to, and gloo has none; choose transport tcp, or {other}"
        )
    if config.updates_parts:
        return SyncInParts(collectives, buckets, buffers, deadline)
    world_size = collectives.group.world_size
    owners = [0] * len(buckets) if config.owner == "root" else spread_owners(buckets, world_size)
    return OwnedSync(collectives, buckets, buffers, owners, deadline)
