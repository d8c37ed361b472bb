"""The common base of strategies whose workers share a center, each at its own speed."""

from collections import deque
from collections.abc import Mapping
from functools import partial

import numpy as np

from samovar.box.base import Push, Versions
from samovar.collectives.engine import Collectives, PlannedCollectives
from samovar.core.errors import InputError, NotFinite
from samovar.core.layout import all_finite, first_not_finite
from samovar.core.stateful import State, StateValue
from samovar.strategies.base import Place, Reduced, Strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.local_sgd import take_center
from samovar.strategies.settings import further, pulls_too_far
from samovar.strategies.traits import MAX_REFUSED_PUSHES, Chosen, Traits
from samovar.transports.base import Array

NUM_RECENT = 64


class Staleness:
    """Of each update: how many updates of others its fullest chunk took between this worker's read and the update.

    `last` is that of the last update, `largest` of all so far, `histogram` how often each came.
    """

    def __init__(self) -> None:
        self.last = 0
        self.largest = 0
        self.histogram: dict[int, int] = {}
        self._recent: deque[int] = deque(maxlen=NUM_RECENT)

    @property
    def mean(self) -> float:
        """Over the last 64 updates; 0 before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else 0.0

    def note(self, seen: Versions, updated: Versions) -> int:
        """An update whose chunks now have the versions `updated`, made from those that were read as `seen`."""
        self.last = max(0, int((updated - seen).max(initial=1)) - 1)
        self.largest = max(self.largest, self.last)
        self.histogram[self.last] = self.histogram.get(self.last, 0) + 1
        self._recent.append(self.last)
        return self.last


class CenterSteps(Strategy):
    """Every worker updates its own x_i; after every `sync_period_steps`-th step of its own: `_exchange` with c.

    No worker waits for another worker's step, unless a rule says so. `_sequence` counts this worker's updates of c
    from 1, over the life of this object. Evaluated and saved: c, read at each request.

    Weights that are not finite never come to c. If a due exchange finds them, the worker continues from c: x = c. It
    does the same if c refuses an update because it would not be finite with it.
    """

    traits = Traits(has_center=True)
    exchanges = "weights"

    def __init__(self, place: Place) -> None:
        assert place.seat is not None, "there is no center"
        chosen = place.chosen
        self.staleness = Staleness()
        self.num_refused = 0
        self._num_refused_in_a_row = 0
        self._max_refused_pushes = chosen.max_refused_pushes or MAX_REFUSED_PUSHES
        self._has_started_anew = False
        self._center = place.seat.center
        self._is_first = place.seat.is_first
        self._buckets = place.buckets
        self._weights = place.buffers.weights.array
        self._sync_period_steps = int(chosen.sync_period_steps or 1)
        self._deadline = place.deadline
        self._sequence = 0
        self._seen: Versions | None = None  # the center's versions when this worker last saw it
        self._copy = np.empty_like(self._weights)  # of c, as it was last read
        self._notices: list[str] = []
        if self._is_first:
            self._center.write(self._weights, self._deadline())

    @property
    def num_updates(self) -> int:
        """This worker's updates that the center has, or that are on their way."""
        return self._sequence

    @property
    def moving_rate(self) -> float:
        """The rate in use; 0 if the rule has none."""
        return 0.0

    def resize(self, num_workers: int) -> None:
        """`num_workers` share the center from now on: a default moving rate follows, a given one stays."""

    @property
    def group_size(self) -> int:
        """The number of workers that make the same steps as this one, itself included."""
        return 1

    @property
    def is_lost(self) -> bool:
        """Whether the worker must end, because the center refused too many of its updates in a row."""
        return self._num_refused_in_a_row >= self._max_refused_pushes

    @property
    def is_sick(self) -> bool:
        """Whether this worker's last work will never reach the center, because it is not finite."""
        return self._num_refused_in_a_row > 0 or not all_finite(self._weights)

    def has_started_anew(self) -> bool:
        """Whether this worker took x = c since the last call: its solver's state then belongs to lost weights."""
        has_started, self._has_started_anew = self._has_started_anew, False
        return has_started

    def take_notices(self) -> tuple[str, ...]:
        """Sentences for the user since the last call."""
        notices, self._notices = tuple(self._notices), []
        return notices

    def exchanges_at(self, _step: int) -> bool:
        """Never: no other worker's step is waited for."""
        return False

    def is_due(self, step: int) -> bool:
        """Whether the step ends with an exchange with the center."""
        return (step + 1) % self._sync_period_steps == 0

    def uses_weights_after(self, step: int) -> bool:
        return self.is_due(step)

    def reduced(self, _step: int) -> Reduced:
        """All buckets: each worker steps with its own gradients."""
        for bucket in self._buckets:
            yield bucket, 1.0

    def updated(self, step: int) -> None:
        if self.is_due(step):
            self._meet_center()

    def adopt_center(self) -> None:
        """x = c: a worker that joins starts from what the others have learned."""
        self.drain()
        self._take_center()

    def center(self) -> Array | None:
        """c as it is now, with all updates of this worker's after `drain`."""
        self._center.read(self._copy, self._deadline())
        return self._copy

    def state_dict(self) -> State:
        """c, on the first worker alone."""
        self.drain()
        center = self.center() if self._is_first else None
        return {} if center is None else {"center": center.copy()}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """On the first worker: c = the state's, or these weights. The others must not continue before."""
        self.drain()
        if self._is_first:
            take_center(state, self._copy, self._weights)
            self._center.write(self._copy, self._deadline())

    def _meet_center(self) -> None:
        """Exchange; weights that are not finite do not come to the center."""
        if not all_finite(self._weights):
            entries = (entry for bucket in reversed(self._buckets) for entry in reversed(bucket.entries))
            self._refuse(f"those of {first_not_finite(entries, self._weights) or 'a statistic'} first")
            return
        num_refused = self.num_refused
        try:
            self._exchange()
        except NotFinite as error:
            self._refuse(str(error))
        if self.num_refused == num_refused:
            self._num_refused_in_a_row = 0

    def _refuse(self, reason: str) -> None:
        """Keep these weights from the center, and continue from the center."""
        self._count_refused()
        if self.num_refused == 1:
            self._notices.append(
                "weights that are not finite were kept from the center, and this worker continues from the center: "
                f"{reason}; lower the learning rate, or look at this worker's data (said once)"
            )
        self._take_center()

    def _count_refused(self) -> None:
        self.num_refused += 1
        self._num_refused_in_a_row += 1
        self._has_started_anew = True

    def _take_center(self) -> None:
        """x = c."""
        self._seen = self._center.read(self._weights, self._deadline())

    def _exchange(self) -> None:
        """This worker has made its steps and meets the center."""
        raise NotImplementedError

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def _note_update(self, updated: Versions) -> None:
        """An update with which the chunks have these versions; this worker has seen the center with it."""
        if self._seen is not None:
            self.staleness.note(self._seen, updated)
        self._seen = updated


class ElasticSteps(CenterSteps):
    """A worker and the center pull at each other: d = alpha (x - c). A default alpha follows the number of workers."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        chosen = place.chosen
        assert chosen.moving_rate is not None, chosen
        self._rate = chosen.moving_rate
        self._worker_rate = chosen.worker_rate
        self._default_rate_for = partial(self.default_rate, chosen)
        self._is_default = self._rate == self._default_rate_for(place.num_workers)
        self._under_way: Push | None = None

    @classmethod
    def default_rate(cls, chosen: Chosen, num_workers: int) -> float:
        """The moving rate if none is given."""
        setting = cls.traits.setting("moving_rate")
        assert setting is not None, cls
        return float(setting.default_for(chosen, num_workers) or 0.0)

    @classmethod
    def warnings(cls, chosen: StrategyConfig, world_size: int) -> tuple[str, ...]:
        """One exchange multiplies the distance between x and c by 1 - alpha - max(alpha, beta), beta the worker's."""
        rate, worker_rate = chosen.moving_rate or 0.0, chosen.worker_rate or 0.0
        if rate + max(rate, worker_rate) <= 1.0:
            return ()
        if rate <= 0.5:
            return (
                f"--worker-rate {worker_rate:g} with moving rate {rate:.4g} takes a worker and the center past each "
                f"other at every exchange; up to {1.0 - rate:.4g} it does not",
            )
        consequence = "takes a worker and the center past each other at every exchange; up to 0.5 it does not"
        return pulls_too_far(rate, world_size, cls.default_rate(chosen, world_size), consequence)

    @property
    def moving_rate(self) -> float:
        return self._rate

    def resize(self, num_workers: int) -> None:
        if self._is_default:
            self._rate = self._default_rate_for(num_workers)

    def _exchanged(self, rate: float) -> Versions:
        """Exchange at once; the chunks' versions with it."""
        if more := further(self._worker_rate, rate):
            self._copy[:] = self._weights
        versions = self._center.exchange(self._next_sequence(), self._weights, rate, self._deadline())
        if more:
            self._copy -= self._weights
            self._weights -= more * self._copy
        return versions

    def _has_come(self) -> bool:
        """Wait for the update under way; whether there was one, and the center took it."""
        if self._under_way is None:
            return False
        try:
            self._under_way.wait(self._deadline())
            self._note_update(self._under_way.versions)
        except NotFinite as error:
            self._under_way = None
            self._refuse(str(error))
            return False
        self._under_way = None
        return True


def planned(collectives: Collectives, name: str) -> PlannedCollectives:
    """`collectives`, if every rank can write to their windows; else raises InputError."""
    if not isinstance(collectives, PlannedCollectives):
        raise InputError(
            f"{name}: needs windows that every rank can write to, and gloo has none; choose transport tcp, or "
            "async-easgd or shm-easgd"
        )
    return collectives
