"""Groups that train in step, and elastic averaging through shared memory between them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from samovar.collectives.engine import PlannedCollectives, RecordExchange
from samovar.collectives.execute import PlanRunner
from samovar.collectives.plan import Plan, renumbered
from samovar.collectives.plans import IN_PLACE
from samovar.core.clock import Deadline, polled
from samovar.core.errors import DeadlineExceeded, InputError
from samovar.core.group import Group
from samovar.core.layout import Bucket, all_finite
from samovar.strategies.base import Place, Reduced, Strategy, strategy
from samovar.strategies.center_steps import planned
from samovar.strategies.config import StrategyConfig
from samovar.strategies.settings import (
    ELASTIC_RECIPE,
    FACTORS,
    MAX_REFUSED,
    MAX_STALENESS,
    MOVING_RATE,
    READ_FIRST,
    SYNC_PERIOD,
    WORKER_RATE,
)
from samovar.strategies.shm_easgd import ShmEasgd
from samovar.strategies.sync import Sync, sum_channels
from samovar.strategies.traits import AUTO, Chosen, Setting
from samovar.transports.base import MappedWindow, Region, Window

_LIFE_BYTES = 8
_POLL_S = 0.002
_MOST_OF_A_GROUP = 4  # the GPUs of a ShmCaffe node


def plan_in_groups(collective: str, *, is_mapped: bool) -> str:
    """The plan inside groups by `--collective`; AUTO adds in place if memory is mapped."""
    if collective != AUTO:
        return collective
    return IN_PLACE if is_mapped else "tree"


class GroupCollectives(PlannedCollectives):
    """Collectives among the ranks kG ... kG + G - 1 to which this one belongs, for all such groups at once."""

    def __init__(self, whole: PlannedCollectives, group_size: int, all_reduce_name: str) -> None:
        super().__init__(whole.transport, lambda _num_bytes: all_reduce_name)
        self._whole = whole
        first = whole.group.rank // group_size * group_size
        self._ranks = range(first, first + group_size)

    @classmethod
    def among(cls, whole: PlannedCollectives, group_size: int, collective: str, window: Window) -> "GroupCollectives":
        """By `collective`; AUTO adds in place if memory, such as `window`, is mapped."""
        return cls(whole, group_size, plan_in_groups(collective, is_mapped=isinstance(window, MappedWindow)))

    @property
    def ranks(self) -> range:
        """Of the group, by their numbers among all."""
        return self._ranks

    @property
    def group(self) -> Group:
        return Group(self._whole.group.rank - self._ranks.start, len(self._ranks))

    def records(self, num_fields: int) -> RecordExchange:
        return RecordExchange(self.transport, num_fields, self._ranks)

    def planned(self, name: str, plan: Plan, buffer: Region) -> PlanRunner:
        return self._whole.planned(name, renumbered(plan, self._ranks), buffer)


class Lives:
    """Tells each rank of a group which life the others live: how often each was started again."""

    def __init__(self, group: GroupCollectives, life: int) -> None:
        self._ranks, self._life = group.ranks, life
        memory = group.region("lives", _LIFE_BYTES)
        self._lives = Region(memory.window, memory.offset, memory.array.view(np.int64))

    def meet(self, deadline: Deadline) -> None:
        """Return when all of the group live this life: none of them notifies another before its slots are clear."""
        self._lives.array[0] = self._life
        if self._life and not polled(lambda: all(map(self._lives_too, self._ranks)), deadline, _POLL_S):
            missing = [rank for rank in self._ranks if not self._lives_too(rank)]
            raise DeadlineExceeded(f"hybrid-easgd: ranks {missing} of this group did not come back; see their logs")

    def _lives_too(self, rank: int) -> bool:
        life = np.empty_like(self._lives.array)
        self._lives.window.get(rank, self._lives.offset, life)
        return bool(life[0] == self._life)


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """This worker's group: its rank there, what sums the group's gradients, and broadcasts of weights by their leaders.

    `lives` is None if nobody comes back.
    """

    group: Group
    sync: Strategy
    broadcasts: Mapping[int, PlanRunner]
    lives: Lives | None = None

    @classmethod
    def in_step(cls, group: GroupCollectives, place: Place) -> "GroupMembers":
        """Gradients travel as they are, and the group's first worker leads."""
        assert place.seat is not None, place
        channels = sum_channels(group, place.buckets, place.buffers.gradients)
        sync = Sync(channels, group.group.world_size, False, place.deadline)
        broadcasts = {0: group.broadcast("group's weights", place.buffers.weights)}
        return cls(group.group, sync, broadcasts, Lives(group, place.seat.life))


def _group_size(_chosen: Chosen, world_size: int) -> int:
    """The largest divisor of the number of workers, up to 4 and to half of them; else 1."""
    sizes = range(1, min(_MOST_OF_A_GROUP, world_size // 2) + 1)
    return max((size for size in sizes if world_size % size == 0), default=1)


def _rate(chosen: Chosen, world_size: int) -> float:
    return 0.5 / max(1, world_size // (chosen["group_size"] or _group_size(chosen, world_size)))


GROUP_SIZE = Setting(
    "group_size",
    int,
    "Workers in a group.",
    least=1,
    unit="workers",
    default=_group_size,
    default_words="the largest divisor of the workers up to 4 and half of them",
    words="groups of {value}",
    source="Ahn et al. 2018 (ShmCaffe-H)",
    is_advanced=True,
)


@strategy(
    "hybrid-easgd",
    exchange="gradients inside its group, every step; groups exchange as in `shm-easgd`",
    waits_for="its group, every step",
    settings=(
        SYNC_PERIOD.by_default(4),
        MOVING_RATE.by_default(_rate, "0.5 / groups"),
        WORKER_RATE,
        GROUP_SIZE,
        MAX_STALENESS,
        READ_FIRST,
        MAX_REFUSED,
        replace(FACTORS, default_words="off"),
    ),
    in_groups=True,
    is_replayable=False,
    recipe=ELASTIC_RECIPE,
)
class HybridEasgd(ShmEasgd):
    """ShmCaffe-H: G workers are a group. g = (1/G) sum of the group's g_i; every worker of it makes the same step.

    Every `sync_period_steps` steps the group's leader, its first worker, does what `ShmEasgd` says for all of them. It
    sends its weights x - d to the others before their next step. So a group's weights are always the same bits. P
    counts groups: the center sees that many workers. Each step waits for the group, no group for another.

    Cost: `Sync`'s in a group at each step. Between groups `ShmEasgd`'s, so its traffic divided by G. Each exchange adds
    a broadcast of N floats in the group.

    Source: Ahn et al. 2018 (ShmCaffe-H): 10.1 times one GPU's speed with 4 groups of 4, 1.4 points of accuracy lost.
    """

    def __init__(self, place: Place, members: GroupMembers) -> None:
        super().__init__(place)
        self._members = members
        self.leader = 0  # who meets the center for its group; all of the group must have the same

    @classmethod
    def of(cls, place: Place) -> "HybridEasgd":
        chosen, window = place.chosen, place.buffers.gradients.window
        assert chosen.group_size is not None, chosen
        whole = planned(place.collectives, chosen.name)
        group = GroupCollectives.among(whole, chosen.group_size, chosen.collective, window)
        return cls(place, GroupMembers.in_step(group, place))

    @classmethod
    def settled(cls, chosen: StrategyConfig, world_size: int) -> StrategyConfig:
        size = chosen.group_size
        if size is not None and world_size % size:
            raise InputError(
                f"--group-size {size}: {world_size} workers do not divide into such groups; "
                f"give a divisor of {world_size} (default {_group_size(chosen, world_size)})"
            )
        return chosen

    @classmethod
    def warnings(cls, chosen: StrategyConfig, world_size: int) -> tuple[str, ...]:
        others = super().warnings(chosen, world_size)
        if chosen.group_size != 1 or world_size == 1:
            return others
        reason = f"{world_size} workers make no two equal groups of 2 to {_MOST_OF_A_GROUP}, so that"
        if _group_size(chosen, world_size) > 1:
            reason = "with --group-size 1"
        return (f"hybrid-easgd: {reason} each worker is a group of its own, as with shm-easgd", *others)

    @property
    def group_size(self) -> int:
        return self._members.group.world_size

    @property
    def _is_leader(self) -> bool:
        return self._members.group.rank == self.leader

    @property
    def is_sick(self) -> bool:
        """The leader says it for all."""
        return self._is_leader and super().is_sick

    def exchanges_at(self, _step: int) -> bool:
        """Always: a step waits for its group."""
        return True

    def gradient_final(self, bucket: Bucket) -> None:
        self._members.sync.gradient_final(bucket)

    def reduced(self, step: int) -> Reduced:
        return self._members.sync.reduced(step)

    def updated(self, step: int) -> None:
        if self.is_due(step):
            self._meet_center()
            self._share_weights()

    def _meet_center(self) -> None:
        """The leader meets it; the others have the same bits, so they know too whether these are refused."""
        if self._is_leader:
            super()._meet_center()
        elif all_finite(self._weights):
            self._num_refused_in_a_row = 0
        else:
            self._count_refused()

    def _count_refused(self) -> None:
        """The others learn of weights that are not finite, and not of a push that the center refused."""
        super()._count_refused()
        self._has_started_anew = not all_finite(self._weights)

    def adopt_center(self) -> None:
        """x = c of one moment in the whole group, which must all call it."""
        if self._members.lives is not None:
            self._members.lives.meet(self._deadline())
        if self._is_leader:
            super().adopt_center()
        self._share_weights()

    def _share_weights(self) -> None:
        """The leader's weights in the whole group."""
        self._members.broadcasts[self.leader].run(self._deadline())
