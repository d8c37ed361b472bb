"""A rank's part of a loader's data, and how far it is."""

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, ClassVar

from torch.utils.data import DataLoader

from samovar.api.figures import ReplicaFigures
from samovar.api.process_group import Announcer, ProcessGroup
from samovar.api.uneven_inputs import Event
from samovar.core.errors import InputError, SamovarError, require_whole
from samovar.core.group import Group
from samovar.frontends.torch.order import EpochOrder, OnDemandOrder, divided_loader, start_of
from samovar.strategies.config import StrategyConfig

PLACE_FIELDS = ("epochs", "batches", "marks")  # of a state


class Shard:
    """This rank's part of a loader: each iteration is one epoch. All parts are disjoint, and complete together.

    If the data set has a length, all ranks take the same number of steps wherever possible, and `len` gives it. Of a
    stream (`IterableDataset`), rank r of P takes every P-th item, beginning with item r. The length is then not known.

    A rank whose data ends first stays in the loop and takes part, without data, in the exchanges of the others. All
    ranks of a step group leave the loop together. At a center each rank leaves by itself.

    `epoch` counts the epochs that have begun, and gives the order of the next one. `source` is the loader as given,
    and `number` counts the shards of a script.
    """

    _order_type: ClassVar[type[EpochOrder]] = EpochOrder

    def __init__(
        self,
        loader: DataLoader[Any],
        group: Group,
        step_group: ProcessGroup,
        announcer: Announcer,
        figures: ReplicaFigures,
        divides_batch: bool,
        seed: int,
    ) -> None:
        self.source, self.seed, self.number = loader, seed, 0
        self._step_group = step_group
        at_center = step_group.group.world_size < group.world_size  # ranks meet no others at the start
        must_repeat = at_center or self._order_type is not EpochOrder
        self._loader, self._order = divided_loader(
            loader, group, seed, divides_batch=divides_batch, must_repeat=must_repeat, order_type=self._order_type
        )
        self._announcer = announcer
        self._batch_size = (loader.batch_size or 0) // (group.world_size if divides_batch else 1)
        self.epoch, self._figures = 0, figures
        self._given: Any = 0  # batches of the epoch that is under way; of an elastic job, its cuts
        self._to_skip: Any = 0  # those that the loop got before its state was saved
        self._mark = 0.0  # of the epoch's order and batch size; 0 if not known

    def __iter__(self) -> Iterator[Any]:
        fingerprint = self._order.start(self.epoch, self._to_skip)
        self._require_same(fingerprint, is_begun=bool(self._to_skip))
        num_skipped, self._to_skip = self._to_skip, 0
        self._announcer.agree(Event.SHARD, self.epoch, fingerprint)
        self.epoch += 1
        self._given = num_skipped
        self._step_group.uneven.depth += 1
        try:
            for batch in self._figures.batches(self._order.left(self._loader), self._batch_size):
                self._given += 1
                yield batch
            self._step_group.shadow_until_all_end()
        finally:
            self._given = 0
            self._step_group.uneven.depth -= 1

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def epochs_done(self) -> float:
        """The epochs so far, with the part of this one that was taken: where a schedule of the learning rate is."""
        return self.epoch - 1 + self._part_done() if self._given else float(self.epoch)

    def _part_done(self) -> float:
        return float(self._given / len(self))

    def _require_same(self, fingerprint: float, is_begun: bool) -> None:
        """Keep the mark of an epoch. Raises InputError if it has begun with another one."""
        mark = fingerprint + self._batch_size  # a stream has no fingerprint
        if is_begun and self._mark not in (0.0, mark):
            raise InputError(
                "shard: this epoch began with batches of another order or size than here, so samples would come "
                "twice or never. Give the data, batch_size and seed that it began with. A sampler must draw from "
                "torch's, NumPy's or Python's numbers, or from its `generator`"
            )
        self._mark = mark

    @property
    def place(self) -> tuple[int, Any, float]:
        """The epochs that have begun, what the loop got of the last one (0 if it has ended), and its mark."""
        return self.epoch + bool(self._to_skip), self._given or self._to_skip, self._mark

    def go_to(self, num_epochs: int, given: Any, mark: float) -> None:
        """Continue at a `place`: the next loop gets the batches of that epoch that are left."""
        self.epoch = num_epochs - bool(given)
        self._given, self._to_skip, self._mark = 0, given, mark


class OnDemandShard(Shard):
    """A shard whose batches go to the ranks that ask for them, so a slow rank takes fewer.

    All ranks of the `team` count the batches of an epoch together. Raises InputError if they step together.
    """

    _order_type = OnDemandOrder

    def __init__(self, team: ProcessGroup, config: StrategyConfig, loader: DataLoader[Any], *made: Any) -> None:
        if not config.is_async:
            raise InputError(
                f"shard: on_demand: with {config.name} all ranks take the same number of steps; leave on_demand out, "
                "or choose a strategy in which none waits for another, such as async-easgd"
            )
        super().__init__(loader, *made)
        self._team, self._num_loops = team, 0

    def _require_same(self, fingerprint: float, is_begun: bool) -> None:
        super()._require_same(fingerprint, is_begun)
        assert isinstance(self._order, OnDemandOrder)
        loop, self._num_loops = self._num_loops, self._num_loops + 1
        name = f"batches/{self._announcer.number}/{self.number}/{loop}"
        self._order.take = self._team.counter(name, self._mark, self._announcer.deadline)

    def _part_done(self) -> float:
        assert isinstance(self._order, OnDemandOrder)
        return self._order.part_taken

    @property
    def place(self) -> tuple[int, Any, float]:
        if self._given:
            raise SamovarError(
                "state_dict(): a loop over an on-demand shard is under way, and which batches are left is not known; "
                "call it between epochs, or leave on_demand out"
            )
        return super().place

    def go_to(self, num_epochs: int, _given: Any, _mark: float) -> None:
        """Begin the epoch after those: what is left of one that was divided evenly is not known."""
        super().go_to(num_epochs, 0, 0.0)


class Shards:
    """The shards of a replica, in the order in which the script made them, and the places of those still to be made."""

    def __init__(self) -> None:
        self._made: list[Shard] = []
        self._places: list[tuple[int, Any, float]] = []

    def of(self, loader: DataLoader[Any], seed: int, make: Callable[[int], Shard], *, on_demand: bool = False) -> Shard:
        """The shard of this loader and seed, made the first time. Each but the first has a seed of its own."""
        require_whole("shard: seed", seed, least=0)
        for shard in self._made:
            if shard.source is loader and shard.seed == seed and isinstance(shard, OnDemandShard) == on_demand:
                return shard
        number = len(self._made)
        shard = make(start_of(seed, number) if number else seed)
        shard.seed, shard.number = seed, number
        if number < len(self._places):
            shard.go_to(*self._places[number])
        self._made.append(shard)
        return shard

    def state_dict(self) -> dict[str, list[Any]]:
        places = [shard.place for shard in self._made] + self._places[len(self._made) :]
        return {field: [place[number] for place in places] for number, field in enumerate(PLACE_FIELDS)}

    def load_state_dict(self, state: Mapping[str, Any], *, has_same_ranks: bool) -> None:
        """Take the places back. With another number of ranks other samples are left, so the next epoch begins."""
        begun = [state.get(field, []) if has_same_ranks else [] for field in PLACE_FIELDS[1:]]
        self._places = [*zip_longest(state["epochs"], *begun, fillvalue=0)]  # earlier versions had no marks
        for shard, place in zip(self._made, self._places, strict=False):
            shard.go_to(*place)
