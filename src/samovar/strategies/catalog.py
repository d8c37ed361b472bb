"""Strategies by name: ours in their order, which an import of this module declares; asked for, built, and advised."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samovar.collectives.engine import Collectives
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, nearest
from samovar.core.layout import Bucket
from samovar.core.machine import TransportFigures
from samovar.strategies.base import Buffers, CenterSeat, Place, Strategy, kind_of
from samovar.strategies.config import StrategyConfig, declared_as, parse_bucket
from samovar.strategies.defaults import resolved
from samovar.strategies.factors import Factoring
from samovar.strategies.hybrid_easgd import GroupMembers, HybridEasgd
from samovar.strategies.ours import OURS
from samovar.strategies.settings import COMPRESS
from samovar.strategies.sync import BUCKET
from samovar.strategies.traits import AUTO, KINDS, NONE, declared_settings
from samovar.strategies.trial import TrialCallback

for _kind in OURS:  # whatever was imported first
    KINDS[_kind.traits.name] = KINDS.pop(_kind.traits.name)
STRATEGIES = tuple(kind.traits.name for kind in OURS)


def asked_for(name: str, collective: str, given: Mapping[str, Any]) -> StrategyConfig:
    """The strategy that flags, or arguments of `samovar.train`, ask for.

    A strategy without buckets ignores --bucket auto, the default; one that cannot compress ignores --compress none.
    """
    settings = {setting: value for setting, value in given.items() if value is not None}
    bucket = settings.pop(BUCKET.name, AUTO)
    size = None if bucket == AUTO else parse_bucket(bucket, "'auto', 'model', 'layer'")
    if settings.get(COMPRESS.name) == NONE:
        del settings[COMPRESS.name]
    kind = KINDS.get(declared_as(name)[1] if ":" in name else name)
    is_automatic = bucket == AUTO and kind is not None and kind.traits.setting(BUCKET.name) is not None
    others = {"collective": collective, BUCKET.name: size, "automatic_buckets": is_automatic}
    return StrategyConfig.given(name, settings, **others)


def by_name(settings: Mapping[str, Any], who: str, others: Iterable[str]) -> dict[str, Any]:
    """Settings by name, from either spelling. Raises InputError, which begins with `who`, if one is given in both.

    It is raised for one that no strategy has, too, and names the nearest among settings and `others`.
    """
    names = {spelling: name for name, own in declared_settings().items() for spelling in own[0].spellings}
    given: dict[str, Any] = {}
    for spelling, value in settings.items():
        if spelling not in names:
            raise InputError(f"{who}: there is no argument {spelling}; {nearest(spelling, [*names, *others])}")
        name = names[spelling]
        if name in given:
            raise InputError(f"{who}: {spelling} is another spelling of {name}; give one of them")
        given[name] = value
    return given


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


FAST, SLOW = "shared memory, or a fast link", "a slow link"
EVEN, UNEVEN = "even", "uneven"
# A link is fast for a net whose exchange takes at most this share of a step.
FAST_SHARE = 0.1
_PROBE_BYTES = 4_000_000  # a million weights


@dataclass(frozen=True, slots=True)
class FittingStrategy:
    """A strategy for such a link and workers of such speeds; `words` say what it gives and costs."""

    link: str
    speeds: str
    flags: str
    exchanges: str
    words: str


_ROWS = (
    (FAST, EVEN, "sync --recipe auto", "every step", "one worker's result, up to rounding; all wait for the slowest"),
    (FAST, UNEVEN, "async-sgd", "every step of each worker", "does not wait for others; learns as one worker"),
    (SLOW, EVEN, "diloco", "every 16 steps", "learns as one worker; all wait for the slowest, once a period"),
    (
        SLOW,
        UNEVEN,
        "shm-easgd --sync-period 8",
        "every 8 steps",
        "does not wait for others; a long period costs accuracy",
    ),
)
ADVICE = tuple(FittingStrategy(link, speeds, f"--strategy {take}", *words) for link, speeds, take, *words in _ROWS)


def shortest_step_s(link: TransportFigures, num_bytes: int = _PROBE_BYTES) -> float:
    """A step that takes longer finds this link fast: a message there and one back, with a net of `num_bytes`."""
    exchange_s = 2 * (link.sleeping_latency_s + num_bytes / link.bandwidth_at(num_bytes))
    return exchange_s / FAST_SHARE
