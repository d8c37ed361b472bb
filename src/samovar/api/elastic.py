"""A replica in an elastic job, whose workers come and go between exchanges."""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils.data import DataLoader

from samovar.api.elastic_exchange import ElasticExchange, ElasticGroups
from samovar.api.exchanges import Exchange
from samovar.api.figures_wanted import FiguresWanted, say
from samovar.api.heartbeats import beating
from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.api.saving import read_part
from samovar.api.shards import Shard
from samovar.api.state import (
    checked,
    from_arrays,
    num_tensors,
    packed,
    part_of,
    require_fitting,
    take_buffers,
    to_arrays,
    unpacked,
)
from samovar.checkpoint.one_file import Save
from samovar.collectives.cost import require_messages
from samovar.core.errors import InputError, SamovarError
from samovar.core.group import Group
from samovar.core.host import available_cpus
from samovar.frontends.torch.neighbours import state_of
from samovar.frontends.torch.optimizers import Given as GivenOptimizers
from samovar.frontends.torch.optimizers import Optimizers
from samovar.frontends.torch.order import Cuts, ElasticOrder
from samovar.frontends.torch.parameters import description, digest_of, layout_of, trained_parameters
from samovar.launch.identity import ElasticJob
from samovar.membership.quorum_messages import Division, Go, Hello, Last
from samovar.membership.quorum_seat import QuorumSeat
from samovar.membership.rounds import Given
from samovar.report.wording import counted
from samovar.strategies.base import kind_of
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import described, resolved
from samovar.transports.keys import read_key
from samovar.transports.processes import own_mark


class ElasticReplica(Replica):
    """One worker of an elastic job; see `Replica`, and the how-to page "Workers that come and go".

    `rank` and `world_size` are those of the present round, and change between rounds. A worker that comes takes
    weights, buffers, the strategy's state, the step and the place in the data from another worker. Its optimizer is
    fresh. `evaluating` shows the weights of the last exchange, with this worker's own buffers, and never waits.
    """

    _exchange: Exchange
    _elastic: ElasticExchange

    def __init__(
        self,
        model: nn.Module,
        optimizer: GivenOptimizers,
        alone: ProcessGroup,
        config: StrategyConfig,
        wanted: FiguresWanted,
        timeout_s: float,
        job: ElasticJob,
    ) -> None:
        self._job, self._unresolved, self._num_before = job.name, kind_of(config.name).regrouped(config), 0
        self._came_at = 0  # at which step
        trained = _description(model, optimizer, self._unresolved)
        hello = Hello(job.place, own_mark(), trained, timeout_s, available_cpus(), job.joins)
        if job.address is not None:
            require_messages(config.collective)
        key = None if job.address is None or job.key_file is None else read_key(job.key_file)
        self._seat = QuorumSeat(job.name, hello, packed, unpacked, job.door, job.address)
        self._groups = ElasticGroups(job, self._seat, key, config.collective, timeout_s)
        try:
            self._admission, self._given = self._seat.enter()
            _require_fitting(self._unresolved, self._admission.max_workers)
            super().__init__(model, optimizer, alone, self._unresolved, timeout_s, wanted=wanted)
            self._closing.callback(self._seat.close)
            self._follow(self._admission.division.world_size)
            self._reductions = _NoReductions()  # type: ignore[assignment]
            self._take(self._given)
            self._elastic.begin()
        except BaseException:
            self._seat.close()
            raise

    @property
    def rank(self) -> int:
        """The number of this worker among those of the round, from 0."""
        return self._division.rank

    @property
    def world_size(self) -> int:
        """The number of workers of the round."""
        return self._division.world_size

    @property
    def how_it_came(self) -> str:
        """As text: to which job, at which step, among how many workers."""
        job = f"elastic job {self._job!r}"
        if not self._given or not self._elastic.border_step:
            return f"{job}, {self.world_size} workers"
        rounds = counted(self._admission.num_rounds_waited, "round")
        return f"came to {job} at step {self._elastic.border_step:,} after {rounds}, {self.world_size} workers"

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def leave(self) -> None:
        """End training here, and let the others continue.

        Takes part in the next exchange, so that this worker's steps count, and waits for it: at most a round. Then the
        model has the weights that came of it. Raises RankFailed and DeadlineExceeded.
        """
        self._require_training("leave()")
        self._checks.require_finite(self._step, self._figures)
        self._elastic.come(Last.LEAVE)
        self._end()
        self._seat.close()

    def busy(self) -> AbstractContextManager[None]:
        """A context for long work of this worker, as `Replica.busy`: the others wait for it at the next exchange."""
        return beating(self._seat.busy)

    def shard(self, loader: DataLoader[Any], *, seed: int = 0, on_demand: bool = False) -> Shard:
        """This worker's part of the loader's data, as `Replica.shard`, divided again when workers come or go.

        A worker that comes continues where the others are: begin with `for epoch in range(shard.epoch, ...)`. If a
        worker dies, its samples of the present round are lost for this epoch. No other sample is lost or seen twice.
        Raises InputError for a stream, which cannot be divided again, and for `on_demand`.
        """
        if on_demand:
            raise InputError("shard: on_demand: workers of an elastic job take equally many batches; leave it out")
        made = (loader, Group(0, 1), self._step_group, self._announcer, self._figures, False)
        return self._shards.of(loader, seed, partial(ElasticShard, *made, division=lambda: self._division))

    def save(self, path: str | Path, extra: Any = None, *, wait: bool = True) -> None:
        """Save `state_dict()` and `extra` in one file, as `Replica.save`. One worker calls this, and none waits for it.

        Raises InputError if the file cannot be written.
        """
        self._require_training("save()")
        self._writer.settle()
        saving = Save(Path(path), secrets.token_hex(8), 0, 1, self._announcer.deadline().remaining_s())
        saving.begin()
        part = part_of({"replica": self.state_dict(), "extra": from_arrays(extra)})
        self._writer.start(lambda moved: saving.write(part, moved))
        if wait:
            self._writer.settle()

    def load(self, path: str | Path) -> Any:
        """Load what `save` wrote, and return `extra`: `load_state_dict` of the file. A late worker returns None."""
        if self._came_at:
            return None
        loaded = read_part(Path(path), 0)
        self.load_state_dict(loaded["replica"])
        return loaded["extra"]

    def state_dict(self) -> dict[str, Any]:
        """The state after the last exchange: common weights, the strategy, the step, and the place in the data.

        Buffers and optimizers are this worker's own, as they are now. Waits for no other worker.
        """
        self._require_training("state_dict()")
        self._checks.require_finite(self._step, self._figures)
        with self._exchange.evaluated():
            model = from_arrays(state_of(self._model))
        state = {
            "rank": 0,
            "world_size": 0,  # any
            "rate_factor": 1.0,
            "strategy": self.config.name,
            **self._elastic.border,
            "model": model,
            "optimizer": from_arrays(self._optimizers.state_dict()),
            "strategy_state": from_arrays(self._exchange.state_dict()),
            "center": None,
        }
        return state | {"num_tensors": num_tensors(state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the job with a state, before the first step. All workers that begin it load the same one.

        For a worker that comes later this does nothing, because it takes the state of another worker. A state of
        another kind of job, or of another strategy, gives its center, or its weights if it has none.

        Raises InputError if the state does not fit, and at the first exchange if the first worker began with another.
        """
        self._require_training("load_state_dict()")
        if self._came_at:
            return
        if self._step:
            raise SamovarError("load_state_dict(): an elastic job loads a state before its first step; call it there")
        state, *_ = checked(state, self.rank, -1, self.config)
        require_fitting(state, self._model, self._optimizers)
        with self._loads.opened():
            self._model.load_state_dict(state["model"])
        self._optimizers.load_state_dict(state["optimizer"])
        self._optimizers.multiply_rates(1.0 / state.get("rate_factor", 1.0))
        with torch.no_grad():
            for name, value in (state["center"] or {}).items():
                self._parameters[name].copy_(value)
        is_own = state["world_size"] == 0 and state["strategy"] == self.config.name
        self._step = int(state["step"])
        self._shards.load_state_dict(state, has_same_ranks=state["world_size"] == 0)
        self._elastic.load_state_dict(to_arrays(state["strategy_state"]) if is_own else {}, self._step)
        self._figures.go_to(self._step)
        self._seat.origin = f"{self._step}/{digest_of(self._parameters)}"

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, elastic job {self._job!r})"

    @property
    def _division(self) -> Division:
        return self._elastic.division if hasattr(self, "_elastic") else self._admission.division

    def _in_step(self, parameters: Mapping[str, nn.Parameter], closing: ExitStack) -> Exchange:
        made = (self._team.collectives, self._seat, self._admission, self._given, self._announcer.deadline)
        calls = (self._around, self._regrouped, self._groups.join)
        self._figures.is_foreseen = False
        self._elastic = ElasticExchange(parameters, self._unresolved, *made, *calls)
        closing.callback(self._elastic.close)
        return self._elastic

    def _take(self, given: Given) -> None:
        """Begin where the others are."""
        if given:
            take_buffers(self._model, given["buffers"])
            self._step = self._came_at = int(given["replica"]["step"])
            self._shards.load_state_dict(given["replica"], has_same_ranks=True)

    def _around(self, state: Given) -> Given:
        place = {"step": self._elastic.border_step, **self._shards.state_dict()}
        fixed = {name: p for name, p in self._model.named_parameters() if name not in self._parameters}
        return {**state, "buffers": {**fixed, **dict(self._model.named_buffers())}, "replica": place}

    def _regrouped(self, go: Go) -> None:
        before, self._num_before = self._num_before, len(go.marks)
        self._follow(len(go.marks))
        if go.rank == 0 and before:
            gone = f"{', '.join(go.gone)} gone; " if go.gone else ""
            say(
                f"step {self._step + 1:,}: {gone}{self.num_workers} workers exchange now, {before} before; "
                f"{described(self.config)}"
            )

    def _follow(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.config = resolved(self._unresolved, num_workers)


class ElasticShard(Shard):
    """See `ElasticReplica.shard`. `division()` is that of the present round."""

    _order_type = ElasticOrder

    def __init__(self, loader: DataLoader[Any], *made: Any, division: Callable[[], Division]) -> None:
        super().__init__(loader, *made)
        self._division = division

    def __iter__(self) -> Iterator[Any]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        self._given, self._to_skip = self._to_skip, 0
        try:
            version = -1
            while version != self._division().version:  # it may change whenever the loop has got a batch
                version = self._division().version
                yield from self._part(epoch, self._division())
        finally:
            self._given = 0

    def __len__(self) -> int:
        self._regroup(self._division())
        return len(self._loader)

    def _part_done(self) -> float:
        num_taken = sum(number * world_size for number, world_size in self._given)
        return float(num_taken / (len(self) * self._division().world_size))

    def _part(self, epoch: int, division: Division) -> Iterator[Any]:
        """Batches of the epoch that are left, until the workers are others."""
        earlier: Cuts = self._given or ()
        self._require_same(self._regroup(division).start_after(epoch, earlier), is_begun=bool(earlier))
        for number, batch in enumerate(self._figures.batches(self._loader, self.source.batch_size or 0), 1):
            self._given = [*earlier, [number, division.world_size]]
            yield batch
            if self._division().version != division.version:
                break

    def _regroup(self, division: Division) -> ElasticOrder:
        assert isinstance(self._order, ElasticOrder)
        self._order.regroup(Group(division.rank, division.world_size))
        return self._order


class _NoReductions:
    """Workers of an elastic job meet in exchanges alone."""

    def _refuse(self, *_given: Any, **_named: Any) -> NoReturn:
        raise SamovarError(
            "mean() and other calls wait for all ranks, and ranks of an elastic job come and go. Show each worker's "
            "own value, or evaluate on the first one (replica.is_first)"
        )

    reduce = gather = broadcast = barrier = _refuse


def _description(model: nn.Module, optimizer: GivenOptimizers, config: StrategyConfig) -> str:
    """A hash of all that must be equal on all workers."""
    parameters = trained_parameters(model, Optimizers(optimizer))
    described = json.dumps([description(model, parameters), layout_of(parameters).fingerprint(), asdict(config)])
    return hashlib.sha256(described.encode()).hexdigest()


def _require_fitting(config: StrategyConfig, max_workers: int) -> None:
    """A moving rate that the user chose must suit as many workers as there may be."""
    if config.moving_rate is not None:
        try:
            resolved(config, max_workers)
        except InputError as error:
            raise InputError(
                f"{error}; leave it out, or give `samovar run --elastic` a smaller --max-workers"
            ) from None
