"""Ranks that run a user's own script: their variables, the place where they meet, and their end.

Ranks get torchrun's variables, so that a script works under both launchers. On one host rank 0 also inherits a socket
that listens on a free loopback port. So no other program can take the port in between.
"""

import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from samovar.core.errors import InputError
from samovar.core.host import num_available_cpus
from samovar.launch.guard import Guard
from samovar.launch.numa import apart, place
from samovar.launch.watch import EXIT_PREEMPTED, Consequence, EndPolicy, Outlet, RankEnd, RankProcess, RankWatch
from samovar.transports.rendezvous import addresses_towards, interface_of

LOOPBACK = "127.0.0.1"
ENDING = (signal.SIGINT, signal.SIGTERM)
_PASSED_ON = (*ENDING, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_LISTEN_BACKLOG = 128
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Hosts:
    """The number of this host among how many, and the place where rank 0 of all can be met."""

    num_hosts: int
    number: int
    address: str
    port: int

    @classmethod
    def of(cls, num_hosts: int, number: int | None, address: str | None, port: int | None) -> "Hosts | None":
        """The place that --nodes and its companions give this host; None for a single one. Raises InputError."""
        if num_hosts < 1:
            raise InputError(f"--nodes {num_hosts}: give the number of hosts, from 1")
        given = {"--node-rank": number, "--master-addr": address, "--master-port": port}
        if num_hosts == 1:
            extra = [flag for flag, value in given.items() if value not in (None, 0)]
            if extra:
                raise InputError(f"{extra[0]} is for several hosts: give --nodes too; on one, a free port is found")
            return None
        missing = [flag for flag, value in given.items() if value is None]
        if number is None or address is None or port is None:
            raise InputError(
                f"--nodes {num_hosts} needs {', '.join(missing)} too; the same on every host, but --node-rank"
            )
        if not 0 <= number < num_hosts:
            raise InputError(f"--node-rank {number}: hosts are numbered from 0 to {num_hosts - 1}")
        require_port(port)
        return cls(num_hosts, number, address, port)


def require_port(port: int | None) -> None:
    """Raises InputError for a --master-port that is none."""
    if port is not None and not 0 < port <= _MAX_PORT:
        raise InputError(f"--master-port {port}: a port is a number from 1 to {_MAX_PORT}")


@dataclass(frozen=True, slots=True)
class ScriptEnd:
    """How a rank ended: `return_code` as in RankEnd, or None if the launcher ended it. It is that of SIGSTOP if the
    rank was stopped for too long.

    It lasted `seconds`, until `ended_s` on the monotonic clock.
    """

    rank: int
    process_id: int
    return_code: int | None
    seconds: float
    ended_s: float


@dataclass(slots=True)
class _Running:
    process_id: int
    started_s: float
    stood_still: bool = False


class Keeper(Protocol):
    """Keeps a center in memory, or the quorum of an elastic job, for ranks that continue if one of them fails.

    Ranks inherit the descriptors `files`, and find them by `variables`.
    """

    @property
    def files(self) -> tuple[int, ...]: ...
    @property
    def variables(self) -> Mapping[str, str]: ...

    def is_filled(self) -> bool:
        """Whether ranks can continue without one that failed; at a center if it has its first weights."""

    def ended(self, end: "ScriptEnd") -> None:
        """A rank has ended, and is not started again."""


class ScriptLaunch(EndPolicy):
    """Runs `command(rank, cpus)` once for each of `num_ranks` ranks of this host, and passes signals on.

    `hosts` is None if this host is the only one. `on_output(rank, stream, data)` gets the bytes that ranks write,
    stream 1 or 2; ranks wait while `outlet` is blocked. When a rank has failed, `await_others_s(end)` says how long to
    wait for other ranks, whose failure may be the cause. `grace_s` is the time for ranks to end after a signal, or
    after one ended with code 75 (pre-empted). `settings` are variables for all ranks.

    When ranks have failed and none is left, all are started again, at most `max_restarts` times. Before that,
    `on_restart(ends, number)` gets the ends. After a signal or code 75, no rank is started again.

    With `kept`, a rank that fails is started again by itself, at most `max_restarts` times in all, and the others
    continue in any case. They share what this launcher keeps: a center, or a quorum. A rank that is stopped for
    `stopped_s` is ended.
    """

    def __init__(
        self,
        command: Callable[[int, tuple[int, ...]], Sequence[str]],
        num_ranks: int,
        hosts: Hosts | None,
        on_output: Callable[[int, int, bytes], None],
        outlet: Outlet,
        await_others_s: Callable[[ScriptEnd], float],
        grace_s: float,
        settings: Mapping[str, str],
        max_restarts: int = 0,
        on_restart: Callable[[Sequence[ScriptEnd], int], None] = lambda _ends, _number: None,
        kept: Keeper | None = None,
        stopped_s: float = math.inf,
    ) -> None:
        self._command = command
        self._num_ranks = num_ranks
        self._hosts = hosts
        self._on_output = on_output
        self._await_others_s = await_others_s
        self._grace_s = grace_s
        self._settings = settings
        self._max_restarts, self._num_restarts = max_restarts, 0
        self._on_restart = on_restart
        self._kept = kept
        self.stopped_s = stopped_s
        self._lives: dict[int, int] = {}
        self._meeting = ExitStack()
        self._placement = place(num_ranks, None, most_threads=num_available_cpus())
        self._cpus = self._placement.cpus
        self._running: dict[int, _Running] = {}
        self._ends: dict[int, ScriptEnd] = {}
        self._variables: dict[str, str] = {}
        self._listening: socket.socket | None = None
        self._guard: Guard | None = None
        self.signals: list[int] = []  # that were passed on, in their order
        self.kill_signal = 0  # the second one, which ended the ranks at once
        # Nohup, or a shell in the background, ignores some on purpose.
        taken = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
        self._watch = RankWatch(partial(map, self._start), range(num_ranks), taken, self._pass_on, self, outlet)

    @property
    def first_rank(self) -> int:
        """The number of this host's first rank."""
        return 0 if self._hosts is None else self._hosts.number * self._num_ranks

    @property
    def is_asked_to_end(self) -> bool:
        """Whether one of these asks the ranks to end."""
        return any(number in ENDING for number in self.signals)

    @property
    def oversubscribed(self) -> bool:
        return self._placement.oversubscribed

    def run(self) -> list[ScriptEnd]:
        """How each rank of this host ended: failed ones first, in their order, and those that were ended last.

        Raises InputError if a process cannot be started or no port is free.
        """
        with ExitStack() as stack:
            self._guard = stack.enter_context(Guard())
            self._cpus = stack.enter_context(apart(self._placement.cpus))
            stack.enter_context(self._meeting)
            self._variables = self._meeting.enter_context(self._rendezvous())
            return self._all_ends(self._watch.run())

    def _all_ends(self, ends: Sequence[RankEnd]) -> list[ScriptEnd]:
        """The ends of all ranks, those that this launcher ended too."""
        by_itself = [self._ends[end.rank] for end in ends]
        names = {end.rank for end in by_itself}
        now_s = time.monotonic()
        ended = [
            ScriptEnd(rank, one.process_id, None, now_s - one.started_s, now_s)
            for rank, one in self._running.items()
            if rank not in names
        ]
        return by_itself + ended

    @contextmanager
    def _rendezvous(self) -> Iterator[dict[str, str]]:
        """Variables that tell where rank 0 is met; on one host with a socket that listens there.

        MASTER_PORT is free then: a process group of the script's own meets there.
        """
        if self._hosts is not None:
            yield {"MASTER_ADDR": self._hosts.address, "MASTER_PORT": str(self._hosts.port)}
            return
        try:
            self._listening = socket.create_server((LOOPBACK, 0), backlog=_LISTEN_BACKLOG)
        except OSError as error:
            raise InputError(f"no port of {LOOPBACK} can be listened on: {error}; is the loopback up?") from error
        with self._listening as listening:
            with socket.create_server((LOOPBACK, 0)) as other:
                free_port = other.getsockname()[1]
            own = str(listening.getsockname()[1])
            yield {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port), "SAMOVAR_PORT": own}

    def _start(self, local_rank: int) -> RankProcess:
        rank = self.first_rank + local_rank
        pipes = [os.pipe(), os.pipe()]
        # An interpreter's first imports fail of a Ctrl-C: it waits until script_rank takes it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            process = self._popen(local_rank, pipes[0][1], pipes[1][1])
        except OSError as error:
            for read_end, _ in pipes:
                os.close(read_end)
            raise InputError(f"rank {rank} cannot be started: {error}; see the limits (`ulimit -a`)") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for _, write_end in pipes:
                os.close(write_end)
        assert self._guard is not None
        self._guard.watch(process.pid)
        self._running[rank] = _Running(process.pid, time.monotonic())
        takers: dict[int, Callable[[bytes], None]] = {
            read_end: partial(self._on_output, rank, stream) for stream, (read_end, _) in enumerate(pipes, 1)
        }
        return RankProcess(rank, process, takers)

    def _popen(self, local_rank: int, stdout: int, stderr: int) -> "subprocess.Popen[bytes]":
        rank = self.first_rank + local_rank
        variables = self._rank_variables(local_rank)
        inherited: tuple[int, ...] = ()
        if rank == 0 and self._listening is not None:
            inherited = (self._listening.fileno(),)
            variables["SAMOVAR_LISTEN_FD"] = str(inherited[0])
        if self._kept is not None:
            inherited += self._kept.files
            variables |= {**self._kept.variables, "SAMOVAR_LIFE": str(self._lives.get(rank, 0))}
        return subprocess.Popen(
            list(self._command(rank, self._cpus[local_rank])),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=inherited,
            env=_environment() | variables,
            start_new_session=True,
        )

    def _rank_variables(self, local_rank: int) -> dict[str, str]:
        num_hosts = 1 if self._hosts is None else self._hosts.num_hosts
        chosen = {
            **self._settings,
            "RANK": str(self.first_rank + local_rank),
            "WORLD_SIZE": str(self._num_ranks * num_hosts),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(self._num_ranks),
        }
        if self._max_restarts and self._kept is None:
            chosen["TORCHELASTIC_RESTART_COUNT"] = str(self._num_restarts)
            chosen["TORCHELASTIC_MAX_RESTARTS"] = str(self._max_restarts)
        # Lines are to be seen when they are printed, not when a block of them is full.
        defaults = {"OMP_NUM_THREADS": str(self._placement.threads_per_worker), "PYTHONUNBUFFERED": "1"}
        return {name: os.environ.get(name, value) for name, value in defaults.items()} | self._variables | chosen

    def _pass_on(self, number: int) -> bool:
        """Pass a signal on to the ranks; a second one that asks to end ends them."""
        if number in ENDING and any(earlier in ENDING for earlier in self.signals):
            self.kill_signal = number
            return True
        self.signals.append(number)
        for rank in self._watch.ranks:
            if rank.process.returncode is None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(rank.pidfd, number)
        return False

    def starts_again(self, ends: Sequence[RankEnd]) -> bool:
        codes = {end.return_code for end in ends}
        if self._kept is not None:
            return False
        is_over = not any(codes) or EXIT_PREEMPTED in codes or self.signals or self.kill_signal
        if is_over or self._num_restarts == self._max_restarts:
            return False
        self._num_restarts += 1
        self._on_restart(self._all_ends(ends), self._num_restarts)
        assert self._guard is not None
        for running in self._running.values():  # those that this launcher ended, too
            self._guard.forget(running.process_id)
        self._running.clear()
        self._ends.clear()
        self._meeting.close()
        self._variables = self._meeting.enter_context(self._rendezvous())
        return True

    def patience_asked_s(self) -> float:
        return self._grace_s if self.is_asked_to_end else math.inf

    def patience_s(self, failed: RankEnd) -> float:
        is_ending = failed.return_code == EXIT_PREEMPTED or self.is_asked_to_end
        if not is_ending and self._kept is not None and self._kept.is_filled():
            return math.inf
        if self.signals or failed.return_code == EXIT_PREEMPTED:
            return self._grace_s
        return self._await_others_s(self._ends[failed.rank])

    def consequence(self, end: RankEnd) -> Consequence:
        running = self._running[end.rank]
        assert self._guard is not None
        self._guard.forget(running.process_id)
        now_s = time.monotonic()
        code = -signal.SIGSTOP if running.stood_still else end.return_code
        self._ends[end.rank] = ScriptEnd(end.rank, running.process_id, code, now_s - running.started_s, now_s)
        if not self._goes_on(end) or self._num_restarts == self._max_restarts:
            if self._kept is not None:
                self._kept.ended(self._ends[end.rank])
            return super().consequence(end)
        self._num_restarts += 1
        self._lives[end.rank] = self._lives.get(end.rank, 0) + 1
        self._on_restart([self._ends.pop(end.rank)], self._num_restarts)
        return Consequence(counts=False, started=(end.rank - self.first_rank,))

    def stood_still(self, rank: int) -> None:
        self._running[rank].stood_still = True

    def _goes_on(self, failed: RankEnd) -> bool:
        """Whether the others continue without a rank that failed."""
        is_over = failed.return_code in (0, EXIT_PREEMPTED) or self.signals or self.kill_signal
        return not is_over and self._kept is not None and self._kept.is_filled()


def _environment() -> dict[str, str]:
    """This process's own, without what another launcher has told it about itself."""
    own = ("LISTEN_FD", "PORT", "BOARD_FD", "CENTER_FD", "LIFE", "ELASTIC", "EMULATION")
    told = ("TORCHELASTIC_", *(f"SAMOVAR_{name}" for name in own))
    return {name: value for name, value in os.environ.items() if not name.startswith(told)}


def describe_route(address: str, port: int, is_own: bool) -> str:
    """Where the ranks meet and how this host gets there, as text; nothing is sent. `is_own`: the address should be this
    host's.
    """
    meeting = f"they meet at {address} port {port}"
    try:
        own, target = addresses_towards(address)
    except (OSError, UnicodeError) as error:  # a name may also be none at all
        return f"{meeting}, which cannot be reached from here now: {error}"
    if is_own and own != target:
        return f"{meeting}, which is not this host's own address (that towards it is {own})"
    name = interface_of(own)
    return f"{meeting}, reached from {own}" + (f" (interface {name})" if name else "")
