"""The exchanges of weights in an elastic job, each among the present workers; how these are connected."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from samovar.api.connect import shared_memory
from samovar.api.connect_hosts import plan_between
from samovar.api.exchanges import Apply, Exchange, Parameters
from samovar.api.figures_wanted import warn
from samovar.collectives.engine import Collectives, PlannedCollectives
from samovar.core.clock import Deadline
from samovar.core.group import Group, Host, JobHosts, rank_names
from samovar.core.stateful import State, StateValue
from samovar.frontends.torch.parameters import layout_of
from samovar.frontends.torch.state import FlatWeights
from samovar.launch.identity import ElasticJob
from samovar.membership.quorum_messages import Admission, Division, Go, Last
from samovar.membership.quorum_seat import QuorumSeat
from samovar.membership.rounds import Given, Rounds
from samovar.strategies.config import StrategyConfig
from samovar.strategies.elastic_weights import ElasticWeights
from samovar.transports.base import Region
from samovar.transports.hosts import open_hosts
from samovar.transports.keys import Key
from samovar.transports.processes import open_process
from samovar.transports.shm import ShmTransport


class ElasticExchange(Exchange):
    """Steps of the worker's own, and after every period an exchange with all present workers; see `Rounds`.

    `around(state)` adds to a state what else a worker needs that comes. `on_group(go)` gets each new group, which
    `join(go, closing)` connects.
    Memory: that of `WeightExchange`, and N floats for a copy while an exchange is not sure to count.
    """

    def __init__(
        self,
        parameters: Parameters,
        config: StrategyConfig,
        alone: Collectives,
        seat: QuorumSeat,
        admission: Admission,
        given: Given,
        deadline: Callable[[], Deadline],
        around: Callable[[Given], Given],
        on_group: Callable[[Go], None],
        join: Callable[[Go, ExitStack], Collectives],
    ) -> None:
        self._parameters, self._join = parameters, join
        self._seat, self._admission = seat, admission
        self._around, self._on_group = around, on_group
        self._layout = layout_of(parameters)
        self._group = ExitStack()
        self._num_steps = 0  # since the last exchange
        self.border_step = int(given["replica"]["step"]) if given else 0  # the step after the last exchange
        self.border: Mapping[str, Any] = given["replica"] if given else {"step": 0, "epochs": [], "batches": []}
        self._rounds: Rounds | None = None
        self._weights = ElasticWeights(config, self._layout, self._hold, alone, deadline, given)

    @property
    def division(self) -> Division:
        """This worker's place among those of the round."""
        return self._admission.division if self._rounds is None else self._rounds.division

    @property
    def period_steps(self) -> int:
        return self._weights.period_steps

    def begin(self) -> None:
        """The founder hands its state to the others; they have theirs."""
        self._rounds = Rounds(self._seat, self, self._admission, warn)

    def step(self, step: int, apply: Apply) -> None:
        self._flat.require_in_place()
        apply()
        self._num_steps += 1
        if (step + 1) % self.period_steps == 0:
            self.come(Last.NO)

    def come(self, last: Last) -> bool:
        """Exchange with all present workers. Gives whether it was everybody's last exchange."""
        assert self._rounds is not None
        num_steps, self._num_steps = self._num_steps, 0
        return self._rounds.exchange(num_steps, last)

    def finish(self, _step: int) -> None:
        """Meet those that still train, round after round, until all are here."""
        while not self.come(Last.FINISH):
            pass

    def evaluated(self) -> AbstractContextManager[None]:
        self._flat.require_in_place()
        return self._flat.replaced(self._weights.common.copy())

    def center(self) -> dict[str, torch.Tensor] | None:
        return self._flat.named(self._weights.common)

    def state_dict(self) -> State:
        return self._weights.strategy.state_dict()

    def load_state_dict(self, state: Mapping[str, StateValue], step: int) -> None:
        """Begin the first round with the weights that the parameters have now, and this state of the strategy."""
        self._flat.gather()
        self._weights.restore((self._weights.region.array.copy(), state))
        self._weights.committed()
        self.border_step = step - step % self.period_steps
        self.border = self._around({})["replica"]

    def close(self) -> None:
        """Give the parameters memory of their own, and leave the group."""
        self._weights.release()
        self._group.close()

    # What follows is the `Trainee` of the rounds.

    def regroup(self, go: Go) -> None:
        self._group.close()
        self._weights.regroup(self._join(go, self._group))
        self._on_group(go)

    def kept(self) -> Any:
        with torch.no_grad():
            return self._weights.kept()

    def restore(self, kept: Any) -> None:
        with torch.no_grad():
            self._weights.restore(kept)

    def exchange(self) -> None:
        with torch.no_grad():
            self._weights.exchange()

    def committed(self) -> None:
        self._weights.committed()
        self.border_step += self.period_steps
        self.border = self._around({})["replica"]

    def given(self) -> Given:
        return self._around(self._weights.given())

    def _hold(self, region: Region) -> FlatWeights:
        self._flat = FlatWeights(self._parameters, self._layout, region.array)
        return self._flat


class ElasticGroups:
    """Connects this worker with those of each Go: in shared memory inside a host, and over TCP between hosts.

    In a job on several hosts all hold the job's `key`. A request to another host ends after `timeout_s`.
    """

    def __init__(self, job: ElasticJob, seat: QuorumSeat, key: Key | None, collective: str, timeout_s: float) -> None:
        self._job, self._seat, self._key = job, seat, key
        self._collective, self._timeout_s = collective, timeout_s

    def join(self, go: Go, closing: ExitStack) -> PlannedCollectives:
        """Never waits for other workers. `closing` ends what is opened here."""
        numbers = {name: [rank for rank, host in enumerate(go.hosts) if host == name] for name in go.hosts}
        hosts = tuple(Host(name or "this host", tuple(ranks)) for name, ranks in numbers.items())
        local, collectives = self._inside(go, numbers[go.hosts[go.rank]], hosts, closing)
        if len(hosts) == 1:
            return collectives
        assert self._key is not None
        addresses = tuple(address for address in go.addresses if address is not None)
        job = JobHosts(f"{self._job.name}/{go.generation}", hosts, addresses)
        transport = open_hosts(go.rank, job, local, self._seat.take_listening(), self._key, self._timeout_s)
        closing.callback(transport.close)
        self._seat.watch(lambda rank, who: transport.lose(rank, f"{who} is gone"))
        return PlannedCollectives(transport, plan_between(self._collective, job.sizes, len(go.marks)), job.sizes)

    def _inside(
        self, go: Go, here: list[int], hosts: tuple[Host, ...], closing: ExitStack
    ) -> tuple[ShmTransport, PlannedCollectives]:
        """Shared memory among the ranks `here`, each of which learns at once of another one's end."""
        descriptor = os.dup(self._seat.segment)
        closing.callback(os.close, descriptor)
        names = [f"rank {rank}" for rank in here] if len(hosts) == 1 else [rank_names(hosts)[rank] for rank in here]
        made = (descriptor, Group(here.index(go.rank), len(here)), names, self._collective, closing)
        transport, choose = shared_memory(*made, oversubscribed=go.oversubscribed)
        others = {place: open_process(go.marks[rank]) for place, rank in enumerate(here) if rank != go.rank}
        processes = {place: process for place, process in others.items() if process is not None}
        for process in processes.values():
            closing.callback(process.close)
        transport.watch(names, processes)
        return transport, PlannedCollectives(transport, choose)
