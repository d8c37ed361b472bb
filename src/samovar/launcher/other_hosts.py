"""A run on several hosts, as one of their launchers sees it: host 0 shows and decides, the others report to it.

Each host reports the ends of its ranks to host 0. There the first failure ends the run on every host, as soon as it is
clear which rank caused it. A host that says nothing for the run's timeout is lost, and so is one whose connection ends.
If workers do not wait for each other, each host starts its own again, and the others continue without a lost host.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, SamovarError
from samovar.core.group import Host
from samovar.launch.meeting import Met
from samovar.launch.processes import RankEnd, Signals
from samovar.launch.watch import EndPolicy
from samovar.launcher.restart_policy import RestartPolicy, is_cause
from samovar.membership.kept_memory import ServedMemory
from samovar.report.records import Failed, Notice, Record, from_json, to_json
from samovar.report.result import RunResult, error_of, heard, told
from samovar.report.run_folder import RunFolder, order_is_written
from samovar.transports.links import MOST_BYTES, Inbox
from samovar.transports.shm import BoardWord, RunBoard

_ENDING_S = 15.0  # for ranks that are killed, on a busy machine
_OUTCOME_S = 30.0  # for host 0 to write the result


@dataclass(frozen=True, slots=True)
class RankState:
    """Where a rank of another host ended: its last step, and its log there."""

    step: int
    log: str


@dataclass(slots=True)
class HostDuties:
    """The running job, for messages of other hosts; see `samovar.launcher.job`.

    `take` gets a record of a rank, `state` says how far a rank of this host is. Files are in `folder`. `restarts` is
    the policy of workers that do not wait for each other.
    """

    signals: Signals
    board: RunBoard
    failures: Mapping[int, Failed]
    take: Callable[[int, Record], None]
    state: Callable[[int], RankState]
    folder: RunFolder
    restarts: RestartPolicy | None = None


class _Launcher:
    """The common part of both kinds. `job` is None until the ranks are about to start."""

    def __init__(self, met: Met, timeout_s: float) -> None:
        self.met = met
        self.timeout_s = timeout_s
        self._inbox = Inbox(met.links, timeout_s)
        self._duties: HostDuties | None = None
        self._held: list[tuple[int, Mapping[str, Any], bytes]] = []

    @property
    def host(self) -> Host:
        """This host."""
        return self.met.host

    @property
    def duties(self) -> HostDuties:
        """Those of the running job."""
        assert self._duties is not None, "no job runs"
        return self._duties

    def attach(self, duties: HostDuties) -> None:
        """A job runs from now on; it hears what came early, too."""
        self._duties = duties
        held, self._held = self._held, []
        for item in held:
            self._hear(*item)

    def ranks_changed(self, ranks: Sequence[int], are_gone: bool) -> None:
        """Tell the launchers that are linked to this one of ranks that come back or are gone."""
        self._send_all({"is": "changed", "ranks": list(ranks), "gone": are_gone})

    def lingers(self) -> bool:
        """Host 0 never does: without a rank there the run ends."""
        return False

    def fileno(self) -> int:
        """See `samovar.launch.watch.Inbox`."""
        return self._inbox.fileno()

    def pump(self) -> None:
        """Act on the messages that have come."""
        for number, message, content in self._inbox.take():
            self._hear(number, message, content)

    def close(self) -> None:
        """End the connections. The others hear that this host is gone, unless it has told them how the run ended."""
        self._inbox.close()
        self.met.close()

    def _hear(self, number: int, message: Mapping[str, Any], content: bytes) -> None:
        raise NotImplementedError

    def _wait(self, deadline: Deadline) -> bool:
        """Wait for messages, and act on them; False if none came by the deadline."""
        found = self._inbox.wait(deadline)
        for number, message, content in found:
            self._hear(number, message, content)
        return bool(found)

    def _send_all(self, message: Mapping[str, Any]) -> None:
        for number in self.met.links:
            self._send(number, message)

    def _send(self, number: int, message: Mapping[str, Any], content: bytes = b"") -> None:
        """Send a message, if the host is still there; the thread that listens to it notices if it is not."""
        try:
            self.met.links[number].send(message, Deadline.after(self.timeout_s), content)
        except SamovarError:
            return


class Host0(_Launcher):
    """The launcher of host 0, which has the run's console and folder."""

    def __init__(self, met: Met, timeout_s: float) -> None:
        super().__init__(met, timeout_s)
        self.kill_signal = 0
        self.kept: ServedMemory | None = None  # the center of the run
        self.states: dict[int, RankState] = {}
        self._ends, self._lost = list[RankEnd](), dict[int, str]()
        self._over, self._ready = set[int](), set[int]()
        self._failure: SamovarError | None = None
        self._files: Sequence[Path] = ()

    def begin(self, config: Mapping[str, object], files: Mapping[str, Path]) -> None:
        """Send the others the configuration and, as far as they ask for them, these files by name.

        Returns when all are ready. Raises the error of a host that is not.
        """
        self._files = list(files.values())
        sizes = {name: path.stat().st_size for name, path in files.items()}
        self._send_all({"is": "begin", "config": config, "files": sizes})
        while len(self._ready) < len(self.met.links):
            if not self._wait(Deadline.after(self.timeout_s)):
                waiting = ", ".join(str(self._name(n)) for n in self.met.links if n not in self._ready)
                raise DeadlineExceeded(f"{waiting}: not ready to train within {self.timeout_s:.1f} s; see its console")
            self._require_all()

    def rank_ended(self, _end: RankEnd) -> None:
        """A rank of this host; see `settled`."""

    def signalled(self) -> None:
        """Tell the others what was asked for here."""
        signals = self.duties.signals
        if not signals.kill_signal:
            self._send_all({"is": "requests", "stop": signals.stop_signal, "snapshots": signals.num_snapshots})

    def forward(self, _rank: int, _record: Record) -> bool:
        """Whether a record of this host's ranks went to another host."""
        return False

    def patience_s(self, policy: EndPolicy) -> float:
        """How long this host's ranks may continue after the reports of the others."""
        if self._must_end:
            return 0.0
        return min((policy.patience_s(end) for end in self._ends if end.return_code), default=math.inf)

    def settled(self, ends: Sequence[RankEnd], signals: Signals, *, has_result: bool) -> list[RankEnd]:
        """How the ranks of all hosts ended, the cause of a failure first. Raises the error of a host that is lost."""
        has_failed = any(end.return_code for end in (*ends, *self._ends)) or len(ends) < len(self.host.ranks)
        survives = has_result and self.duties.restarts is not None
        must_end = bool((has_failed and not survives) or signals.kill_signal or self._must_end)
        self._send_all({"is": "over", "kills": must_end})
        deadline = Deadline.after(_ENDING_S if must_end else self.timeout_s)
        while self._missing() and self._wait(deadline):
            pass
        failures = self.duties.failures
        together = sorted([*ends, *self._ends], key=lambda end: (end.return_code == 0, not is_cause(end, failures)))
        is_known = bool(together) and together[0].return_code != 0 and is_cause(together[0], failures) and not survives
        if not (is_known or signals.kill_signal or self.kill_signal):
            self._require_all()
            if missing := self._missing():
                raise DeadlineExceeded(f"{self._name(missing[0])} did not end with the others; see its console")
        return together

    def tell_outcome(self, outcome: RunResult | SamovarError | None) -> None:
        """Tell the others the result, or the error that ends the run."""
        self._send_all({"is": "outcome", **told(outcome)})

    @property
    def _must_end(self) -> bool:
        """Whether something else than the end of a rank ends the run."""
        return bool(self._lost or self._failure or self.kill_signal)

    def _missing(self) -> list[int]:
        return [number for number in self.met.links if number not in self._over and number not in self._lost]

    def _require_all(self) -> None:
        """Raise if a host is lost, or ended by itself."""
        if self._failure is not None:
            raise self._failure
        for number, why in self._lost.items():
            raise RankFailed(
                f"{self._name(number)} is lost, and the run was ended on all hosts: {why}. See its console. If there "
                "is a snapshot, resume with --snapshot latest"
            )

    def _name(self, number: int) -> str:
        return f"host {number}, {self.met.hosts.hosts[number]}"

    def _hear(self, number: int, message: Mapping[str, Any], content: bytes) -> None:
        match message["is"]:
            case "lost":
                if number not in self._over and not self._goes_without(number, message["why"]):
                    self._lost[number] = message["why"]
            case "want":
                self._give(number, self._files[message["file"]], message["offset"])
            case "ready":
                self._ready.add(number)
            case "gave up":
                error = error_of(message["kind"], message["error"], message["exit_code"], RankFailed)
                is_wrong = error.exit_code == InputError.exit_code
                if is_wrong or not self._goes_without(number, message["error"]):
                    self._failure = self._failure or error
                self._over.add(number)
            case "ended":
                self._over.add(number)
                self.kill_signal = self.kill_signal or message["kill"]
            case _ if self._duties is None:
                self._held.append((number, message, content))
            case _:
                self._hear_of_ranks(message, content)

    def _goes_without(self, number: int, why: str) -> bool:
        """Whether the run continues without a host that is lost; its ranks are gone."""
        if self._duties is None or self._duties.restarts is None:
            return False
        self._over.add(number)
        self.met.links[number].end()
        ranks = self.met.hosts.hosts[number].ranks
        self._duties.restarts.changed(ranks, are_gone=True)
        self.ranks_changed(ranks, True)
        text = f"{self._name(number)} is lost: {why}; the others continue without it"
        self._duties.take(ranks[0], Notice(level="warning", text=text))
        return True

    def _hear_of_ranks(self, message: Mapping[str, Any], content: bytes) -> None:
        duties = self.duties
        match message["is"]:
            case "changed" if duties.restarts is not None:
                duties.restarts.changed(message["ranks"], are_gone=message["gone"])
                if message["gone"]:
                    self.ranks_changed(message["ranks"], True)
            case "order":
                mode = "ab" if message["goes_on"] else "wb"
                with order_is_written(path := duties.folder.order(int(message["rank"]))), path.open(mode) as file:
                    file.write(content)
            case "record":
                duties.take(message["rank"], from_json(message["record"]))
            case "end":
                self.states[message["rank"]] = RankState(message["step"], message["log"])
                self._ends.append(RankEnd(message["rank"], message["code"]))
            case "signal":
                duties.signals.hear(message["stop"], duties.signals.num_snapshots + message["snapshots"], duties.board)
                self.signalled()

    def _give(self, number: int, path: Path, offset: int) -> None:
        try:
            with path.open("rb") as file:
                file.seek(offset)
                content = file.read(MOST_BYTES)
        except OSError as error:
            why = f"cannot be sent to {self._name(number)}: {error.strerror}; leave it as it is, and retry"
            raise InputError(f"{path}: {why}") from error
        self._send(number, {"is": "part"}, content)


class OtherHost(_Launcher):
    """The launcher of another host: it tells host 0 what its ranks tell, and ends as host 0 says."""

    def __init__(self, met: Met, timeout_s: float) -> None:
        super().__init__(met, timeout_s)
        self._must_end = self._is_over = False
        self._lost: str | None = None
        self._outcome: Mapping[str, Any] | None = None
        self._begin: Mapping[str, Any] | None = None
        self._parts, self._num_snapshots = list[bytes](), 0

    def begun(self) -> tuple[dict[str, Any], dict[str, int]]:
        """Host 0's configuration, and the sizes of its files by name."""
        while self._begin is None:
            self._next("did not begin")
        return self._begin["config"], self._begin["files"]

    def fetch(self, number: int, size: int, place: Path) -> None:
        """Copy file `number` of host 0 to `place`. Raises InputError if it is shorter than it was."""
        with place.open("wb") as file:
            while (offset := file.tell()) < size:
                self._send(0, {"is": "want", "file": number, "offset": offset})
                while not self._parts:
                    self._next("sent no file")
                if not file.write(self._parts.pop()):
                    raise InputError(f"{place.name} became shorter while it was copied; leave it as it is, and retry")

    def ready(self) -> None:
        """Tell host 0 that this host's ranks may start."""
        self._send(0, {"is": "ready"})

    def rank_ended(self, end: RankEnd) -> None:
        """Tell host 0 of a rank of this host."""
        state, path = self.duties.state(end.rank), self.duties.folder.order(end.rank)
        order = path.read_bytes() if path.exists() else b""
        for start in range(0, len(order), MOST_BYTES):
            self._send(0, {"is": "order", "rank": end.rank, "goes_on": start > 0}, order[start : start + MOST_BYTES])
        self._send(0, {"is": "end", "rank": end.rank, "code": end.return_code, "step": state.step, "log": state.log})

    def lingers(self) -> bool:
        """A host whose ranks are gone stays until host 0 says that the run is over, or is lost."""
        is_over, board = self._is_over or self._lost or self._outcome, self.duties.board
        return not is_over and all(board.read(rank, BoardWord.IS_GONE) for rank in self.host.ranks)

    def signalled(self) -> None:
        """Tell host 0 what was asked for here."""
        signals = self.duties.signals
        if signals.kill_signal:
            return
        asked, self._num_snapshots = signals.num_snapshots - self._num_snapshots, signals.num_snapshots
        self._send(0, {"is": "signal", "stop": signals.stop_signal, "snapshots": asked})

    def forward(self, rank: int, record: Record) -> bool:
        """Send a record of this host's ranks to host 0."""
        self._send(0, {"is": "record", "rank": rank, "record": to_json(record)})
        return True

    def patience_s(self, _policy: EndPolicy) -> float:
        """How long this host's ranks may continue after the messages of host 0."""
        return 0.0 if self._must_end or self._lost or self._outcome else math.inf

    def outcome(self, signals: Signals) -> RunResult | None:
        """The run's result, when it is over on all hosts. Raises the run's error."""
        self._send(0, {"is": "ended", "kill": signals.kill_signal})
        deadline = Deadline.after(self.timeout_s + _OUTCOME_S)
        while self._outcome is None and self._lost is None and self._wait(deadline):
            pass
        self._require_host_0()
        if self._outcome is None:
            raise DeadlineExceeded(f"{self._name} did not tell how the run ended within {self.timeout_s:.1f} s")
        outcome = heard(self._outcome)
        if isinstance(outcome, SamovarError):
            raise outcome
        return outcome

    def give_up(self, error: BaseException) -> None:
        """Tell host 0 why this host ends."""
        message = told(error)
        who = f"host {self.met.number} ({self.host.name})"
        self._send(0, {"is": "gave up", **message, "error": f"{who}: {message['error']}"})

    @property
    def _name(self) -> str:
        return f"host 0, {self.met.hosts.hosts[0]}"

    def _next(self, what: str) -> None:
        if not self._wait(Deadline.after(self.timeout_s)):
            raise DeadlineExceeded(f"{self._name} {what} within {self.timeout_s:.1f} s; see its console")
        if self._outcome is not None:
            self.outcome(Signals())
        self._require_host_0()

    def _require_host_0(self) -> None:
        if self._lost is not None and self._outcome is None:
            raise RankFailed(f"{self._name} is lost, and the run was ended on this host: {self._lost}; see its console")

    def _hear(self, number: int, message: Mapping[str, Any], content: bytes) -> None:
        match message["is"]:
            case "lost":
                self._lost = message["why"]
            case "begin":
                self._begin = message
            case "part":
                self._parts.append(content)
            case "over":
                self._is_over, self._must_end = True, message["kills"]
            case "outcome":
                self._outcome = message
            case "requests" | "changed" if self._duties is None:
                self._held.append((number, message, content))
            case "changed" if self.duties.restarts is not None:
                self.duties.restarts.changed(message["ranks"], are_gone=message["gone"])
            case "requests":
                self.duties.signals.hear(message["stop"], message["snapshots"], self.duties.board)
                self._num_snapshots = self.duties.signals.num_snapshots
