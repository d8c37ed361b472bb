"""Ranks meet in a store, find out which of them share a host, and get that host's shared memory."""

import atexit
import json
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from pathlib import Path

import torch

from samovar.core.clock import Deadline, polled
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, SamovarError
from samovar.core.group import Host
from samovar.core.host import available_cpus, boot_id
from samovar.core.plain import from_plain, to_plain
from samovar.launch.identity import Identity, launcher_process
from samovar.transports.processes import PeerProcess, open_process, own_mark
from samovar.transports.rendezvous import listen_at
from samovar.transports.shm import create_segment
from samovar.transports.torch_dist import JobStore, nccl_card, open_store
from samovar.transports.unix_sockets import ask_port, join_files, offer_files, offer_port

_LOOPBACK = "127.0.0.1"
# A wait that takes longer than this looks whether the ranks of this host still live, and whether hosts fit.
_LOOK_S, _GLANCE_S = 0.2, 0.001
_MISFIT, _PRESENT = "misfit", "present"
_LATE_S, _LEAVING_S = 5.0, 15.0  # so long rank 0 waits at least for ranks that come late, and at most for all
# With these, ranks of a single host meet as if each had a host of its own.
_BETWEEN_HOSTS = ("gloo", "tcp")
_gatherings = count()


@dataclass(frozen=True, slots=True)
class Choice:
    """How ranks exchange: a value of `--collective`, one of `launch.identity.TRANSPORTS`, and the key's file.

    This rank computes on `device`; None is the CPU.
    """

    collective: str
    transport: str
    key_file: Path | None
    device: torch.device | None


@dataclass(frozen=True, slots=True)
class RankHello:
    """A rank's description of itself. Ranks with the same `host` share memory and loopback.

    `card` is NCCL's version and the GPU, as VERSION/GPU. If it is empty, `no_card` says why. `process` is the mark of
    the rank's process.
    """

    world_size: int
    collective: str
    transport: str
    host: str
    name: str
    cores: tuple[int, ...]
    card: str
    no_card: str
    process: str = ""
    is_emulated: bool = False

    @classmethod
    def own(cls, identity: Identity, choice: "Choice") -> "RankHello":
        # Abstract sockets, over which a segment is handed on, belong to a network namespace.
        namespace = Path("/proc/self/ns/net").stat().st_ino
        name, size = socket.gethostname(), identity.world_size
        host = f"{boot_id()}/{namespace}"
        shown = (size, choice.collective, choice.transport, host, name, available_cpus(), *nccl_card(choice.device))
        return cls(*shown, own_mark(), identity.emulation is not None)

    def to_json(self) -> str:
        return json.dumps(to_plain(self))

    @classmethod
    def from_json(cls, text: str, who: str) -> "RankHello":
        """The hello that `to_json` wrote. Raises InputError if the text is something else."""
        try:
            return from_plain(cls, json.loads(text))
        except ValueError as error:
            raise InputError(f"{who} says {text[:80]!r}; do all ranks run the same version of Samovar?") from error


class Gathering:
    """All ranks of a job. They have come when this is made, and `close` leaves them.

    They meet in `store`, or in the one that `identity` leads to.
    Raises InputError if they do not fit together, and DeadlineExceeded with the numbers of ranks that do not come.
    """

    def __init__(
        self, identity: Identity, choice: Choice, timeout_s: float, deadline: Deadline, store: JobStore | None = None
    ) -> None:
        self.identity, self.choice = identity, choice
        self.deadline = deadline
        self._processes: dict[int, PeerProcess] = {}
        self._timeout_s = timeout_s
        self.who = f"rank {identity.rank} of {identity.world_size} on {socket.gethostname()}"
        self.prefix = f"samovar/{identity.attempt}/{next(_gatherings)}"
        with ExitStack() as until_met:
            stores = _open_stores()
            if store is None and identity not in stores:
                stores[identity] = _opened(identity, self.who, deadline, until_met)
            self.store = store or stores[identity]
            self.rendezvous = self.store.rendezvous(self.prefix, self.who)
            self.hellos = self._greet(RankHello.own(identity, choice))
        self.hosts = hosts_of(self.hellos)
        self.is_one_host = len(self.hosts) == 1
        self._processes = self._opened_processes()
        if self.is_one_host and choice.transport in _BETWEEN_HOSTS:
            self.hosts = tuple(Host(hello.name, (rank,)) for rank, hello in enumerate(self.hellos))
        self.host_number = next(n for n, host in enumerate(self.hosts) if identity.rank in host.ranks)

    @property
    def host(self) -> Host:
        return self.hosts[self.host_number]

    def segment(self) -> int:
        """The descriptor of this host's shared memory, which its first rank makes for all."""
        ranks = self.host.ranks
        return self.shared_descriptor("segment", ranks, lambda: create_segment(len(ranks)))

    def shared_descriptor(self, kind: str, ranks: Sequence[int], make: Callable[[], int]) -> int:
        """A descriptor that the first of these ranks of one real host makes and passes to the others."""
        first, *others = ranks
        if self.identity.rank != first:
            secret = self.tell_and_hear(kind, None, [first], [first])[0]
            [descriptor] = join_files(secret.encode(), 1, self.deadline)
            self.rendezvous.tell(f"took {kind}/{self.identity.rank}", "", self.deadline)
            return descriptor
        descriptor, secret = make(), secrets.token_hex(16)
        with offer_files(secret.encode(), (descriptor,)):
            self.rendezvous.tell(f"{kind}/{first}", secret, self.deadline)
            self.tell_and_hear(f"took {kind}", None, others, others)
        return descriptor

    def tell_and_hear(
        self, kind: str, own: str | None, numbers: Iterable[int], ranks: Sequence[int] | None = None
    ) -> list[str]:
        """Tell `own`, unless it is None, under this host's number. Gives the texts told under `numbers`.

        Errors name the `ranks` that told nothing, one for each number (None: the first ranks of these hosts).
        """
        numbers = list(numbers)
        tellers = ranks if ranks is not None else [self.hosts[number].ranks[0] for number in numbers]
        if own is not None:
            self.rendezvous.tell(f"{kind}/{self.host_number}", own, self.deadline)
        self._await(kind, dict(zip(numbers, tellers, strict=True)))
        return [self.rendezvous.value(f"{kind}/{number}", self.deadline) for number in numbers]

    def take_processes(self, closing: ExitStack) -> dict[int, PeerProcess]:
        """The processes of this host's other ranks by their place there, open until `closing` ends."""
        for process in self._processes.values():
            closing.callback(process.close)
        return {place: self._processes[rank] for place, rank in enumerate(self.host.ranks) if rank in self._processes}

    def _opened_processes(self) -> dict[int, PeerProcess]:
        own = self.hellos[self.identity.rank]
        others = {rank: hello.process for rank, hello in enumerate(self.hellos) if hello.host == own.host}
        opened = {rank: open_process(mark) for rank, mark in others.items() if rank != self.identity.rank}
        return {rank: process for rank, process in opened.items() if process is not None}

    def close(self) -> None:
        """Say that this rank is ready. The rank that serves the store waits until all are."""
        self.rendezvous.tell(f"ready/{self.identity.rank}", "", self.deadline)
        if self.identity.rank == 0 and not self.identity.agent_store:
            self._await("ready", {rank: rank for rank in range(self.identity.world_size)})

    def _greet(self, own: RankHello) -> list[RankHello]:
        """Every rank's hello, in rank order."""
        self.rendezvous.count(_PRESENT, 1, self.deadline)
        if not self.rendezvous.claim(f"claim/{self.identity.rank}", self.deadline):
            self._compare_size(own, {0, self.identity.rank})  # hosts that count ranks in two ways give some rank twice
            raise InputError(f"{self.who}: another process has the same rank; give every process its own RANK")
        self.rendezvous.tell(f"rank/{self.identity.rank}", own.to_json(), self.deadline)
        self._compare_size(own, {0})
        self._await("rank", {rank: rank for rank in range(own.world_size)})
        texts = [self.rendezvous.value(f"rank/{rank}", self.deadline) for rank in range(own.world_size)]
        hellos = [RankHello.from_json(text, f"rank {rank}") for rank, text in enumerate(texts)]
        for what in ("world_size", "collective", "transport"):
            self._require_equal(what, [getattr(hello, what) for hello in hellos])
        return hellos

    def _compare_size(self, own: RankHello, ranks: Iterable[int]) -> None:
        """Raise at once, and let all others do so, if one of `ranks` counts other ranks: some never come."""
        for rank in ranks:
            self._await("rank", {rank: rank})
            other = RankHello.from_json(self.rendezvous.value(f"rank/{rank}", self.deadline), f"rank {rank}")
            if other.world_size != own.world_size:
                here = f"{own.world_size} on rank {self.identity.rank} ({own.name})"
                sizes = f"world_size is {here} and {other.world_size} on rank {rank} ({other.name})"
                with suppress(SamovarError):  # rank 0 knows already
                    self.rendezvous.tell(_MISFIT, sizes, self.deadline)
                raise self._misfit(sizes)

    def _misfit(self, sizes: str) -> InputError:
        """The error. Rank 0, with which the store goes, first waits until all that came have it too."""
        late, leaving = (Deadline(min(self.deadline.at_s, Deadline.after(s).at_s)) for s in (_LATE_S, _LEAVING_S))
        with suppress(SamovarError):
            self.rendezvous.count(_PRESENT, -1, leaving)
            if self.identity.rank == 0 and not self.identity.agent_store:
                polled(lambda: late.passed() and self.rendezvous.count(_PRESENT, 0, leaving) <= 0, leaving, _GLANCE_S)
        return InputError(
            f"{self.who}: {sizes}; give every host the same number of ranks, which auto and gpu may not do"
        )

    def _await(self, kind: str, ranks: dict[int, int]) -> None:
        """Wait until all numbers in `ranks` were told. Errors name the ranks of those that were not."""
        missing = [f"{kind}/{number}" for number in ranks]
        while missing and not self.deadline.passed():
            look = Deadline(min(self.deadline.at_s, Deadline.after(_LOOK_S).at_s))
            processes = {f"{kind}/{number}": self._processes.get(rank) for number, rank in ranks.items()}
            ended = {key for key, process in processes.items() if process is not None and process.ended()}
            missing = self.rendezvous.missing(missing, look, self.deadline)  # a busy rank 0 answers late
            for key in ended.intersection(missing):
                raise self._gone(ranks[int(key.removeprefix(f"{kind}/"))])
            if missing and kind == "rank" and not self.rendezvous.missing([_MISFIT], Deadline.after(_GLANCE_S)):
                raise self._misfit(self.rendezvous.value(_MISFIT, self.deadline))
        if not missing:
            return
        absent = [ranks[int(key.removeprefix(f"{kind}/"))] for key in missing]
        names = ", ".join(map(str, absent))
        did = "did not come" if kind == "rank" else f"came, but did not continue ({kind})"
        raise DeadlineExceeded(
            f"{self.who}: rank{'s' if len(absent) > 1 else ''} {names} {did} within {self._timeout_s:.1f} s; were all "
            "ranks started, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE? See their logs"
        )

    def _gone(self, rank: int) -> RankFailed:
        process = self._processes[rank]
        how = process.how_ended(Deadline.after(_LOOK_S)) or "is gone"
        return RankFailed(
            f"{self.who}: rank {rank} (process {process.process_id}) {how} before the ranks were connected; see its log"
        )

    def _require_equal(self, what: str, values: Sequence[object]) -> None:
        own = values[self.identity.rank]
        for rank, value in enumerate(values):
            if value != own:
                raise InputError(
                    f"{self.who}: {what} is {own!r} here and {value!r} on rank {rank}; give all ranks the same"
                )


def hosts_of(hellos: Sequence[RankHello]) -> tuple[Host, ...]:
    """The hosts, in the order of their first ranks."""
    ranks: dict[str, list[int]] = {}
    for rank, hello in enumerate(hellos):
        ranks.setdefault(hello.host, []).append(rank)
    return tuple(Host(hellos[numbers[0]].name, tuple(numbers)) for numbers in ranks.values())


@cache
def _open_stores() -> dict[Identity, JobStore]:
    """The store of this process's job, opened once: a process may join several times."""
    stores: dict[Identity, JobStore] = {}
    atexit.register(stores.clear)
    return stores


def _opened(identity: Identity, who: str, deadline: Deadline, until_met: ExitStack) -> JobStore:
    open_at = partial(open_store, who=who, deadline=deadline)
    serves = identity.rank == 0 and not identity.agent_store
    if identity.address is not None and identity.port is not None:
        return open_at(identity.address, identity.port, serves=serves, listen_descriptor=identity.listen_descriptor)
    job = identity.job or launcher_process()
    if serves:
        listener = listen_at(_LOOPBACK, 0)
        assert listener is not None, "any free port"
        port = listener.getsockname()[1]
        until_met.callback(offer_port(job, port).close)
        return open_at(_LOOPBACK, port, serves=True, listen_descriptor=listener.detach())
    waiting_s = deadline.remaining_s()
    found = ask_port(job, deadline)
    if found is None:
        raise DeadlineExceeded(
            f"{who}: rank 0 did not offer its port on this host within {waiting_s:.1f} s; was it started here? "
            "For several hosts set MASTER_ADDR and MASTER_PORT"
        )
    return open_at(_LOOPBACK, found, serves=False, listen_descriptor=None)
