"""The launcher's part of a job: the run folder, the ranks, their reports, and the result or the error."""

import glob
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol

from samovar.checkpoint.store import SnapshotStore
from samovar.config import RunConfig
from samovar.core.device import CPU
from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, RankFailed, SamovarError
from samovar.core.files import passing_folder
from samovar.core.host import Others, family_seconds, num_available_cpus
from samovar.core.modules import require_packages
from samovar.launch.numa import apart, numa_nodes, spread
from samovar.launch.processes import DEFAULT_EFFECTS, Launch, RankEnd, SignalEffect, Signals
from samovar.launch.rank_arguments import RankArguments
from samovar.launch.watch import EXIT_PREEMPTED
from samovar.launcher.other_hosts import Host0, HostDuties, OtherHost, RankState
from samovar.launcher.restart_policy import InStepPolicy, RestartPolicy, blamed
from samovar.membership.kept_memory import KeptMemory
from samovar.predict.kept import Ran, Subject, foreseen
from samovar.report.records import Failed, Finished, Notice, Record, RecordReader, SnapshotWritten
from samovar.report.result import RunResult, error_of, unlike, with_figures_of, write_result
from samovar.report.run_folder import RunFolder, write_json_atomic
from samovar.report.wording import counted
from samovar.strategies.traits import AUTO
from samovar.transports.shm import BoardWord, RunBoard, create_segment

_PREEMPTING = ("SIGTERM", "SIGUSR1")


class EndedBySignal(SamovarError):
    """A signal ended a job before there was a result; `exit_code` is 128 + its number."""

    def __init__(self, sentence: str, number: int = 0) -> None:  # a pickle gives the sentence, then the code
        super().__init__(sentence)
        self.exit_code = 128 + number


@dataclass(slots=True)
class Told:
    """The reports of ranks: the result (rank 0's), failures, topics of notices, the last snapshot."""

    result: RunResult | None = None
    failures: dict[int, Failed] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    snapshot: Path | None = None

    def take(self, rank: int, record: Record) -> bool:
        """Keep the report; return whether to show it now. The result is shown at the end, and news once."""
        match record:
            case Finished():
                self.result = record.result
            case Failed():
                self.failures[rank] = record
            case SnapshotWritten():
                path = Path(record.path)  # of Caffe's pair that of the weights; the other is what resumes
                self.snapshot = path.with_name(".solverstate".join(path.name.rsplit(".caffemodel", 1)))
        return not isinstance(record, Failed | Finished) and self.is_news(record)

    def is_news(self, record: Record) -> bool:
        """Whether no rank has reported the same."""
        topic = record.topic if isinstance(record, Notice) else ""
        is_known = topic in self.topics
        self.topics |= {topic} - {""}
        return not is_known


class Display(Protocol):
    """Shows the reports of ranks."""

    def show(self, record: Record) -> None: ...


def run_job(
    config: RunConfig,
    folder: RunFolder,
    display: Display,
    effects: Mapping[int, SignalEffect] = DEFAULT_EFFECTS,
    others: Host0 | OtherHost | None = None,
) -> RunResult | None:
    """Start the ranks of `config` with their files in `folder`, show their reports, and return the run's result.

    With `others`, only this host's ranks; host 0 shows the reports of all. Pinned ranks get the cores that other runs
    leave. `effects` are those of signals that do not stop the job. Raises the error of the first rank that failed, with
    its exit code, RankFailed, or EndedBySignal. Raises InputError if PyTorch is not installed.
    """
    require_packages()
    with ExitStack() as stack:
        config = replace(config, cpus=stack.enter_context(apart(config.cpus)))
        write_json_atomic(folder.config, config.to_json())
        return _RunningJob(config, folder, display, _memory(config, stack, others), others).run(effects)


def exit_code_of(result: RunResult | None) -> int:
    """The exit code of a job that ended well, or as it was asked to."""
    return EXIT_PREEMPTED if result is not None and result.stopped_by in _PREEMPTING else 0


def _memory(config: RunConfig, stack: ExitStack, others: Host0 | OtherHost | None) -> dict[str, int]:
    """Descriptors of the memory that ranks share, by their names on a rank's command line; `stack` closes them.

    The launcher keeps the memory. A restarted rank finds it, and nothing is left when the launcher ends.
    """
    memory = {"segment": create_segment(config.workers if others is None else len(others.host.ranks))}
    stack.callback(os.close, memory["segment"])
    kept: KeptMemory | None = others.kept if isinstance(others, Host0) else None
    if others is not None:
        memory |= {"key": others.met.key, "signals": create_segment(config.workers)}
        stack.callback(os.close, memory["signals"])
    elif config.strategy.needs_center and config.box is None:
        kept = stack.enter_context(KeptMemory(config.workers))
    if kept is not None:
        memory |= dict(zip(("board", "center"), kept.files, strict=True))
    return memory


class _RunningJob:
    """Ranks that share `memory`, their reports, and the effect of their ends."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        display: Display,
        memory: Mapping[str, int],
        others: Host0 | OtherHost | None,
    ) -> None:
        self._config = config
        self._folder = folder
        self._display = display
        self._memory = memory
        self._others = others
        self._other_programs = Others(own_s=family_seconds)
        self._ranks = tuple(range(config.workers)) if others is None else others.host.ranks
        self._told = Told(snapshot=config.snapshot)
        self._board = RunBoard(memory.get("signals", memory["segment"]), config.workers)
        self._policy = self._policy_of(config)
        self._readers = {rank: RecordReader() for rank in self._ranks}

    def _policy_of(self, config: RunConfig) -> InStepPolicy:
        failures, timeout_s, hosts = self._told.failures, config.timeout_s, config.hosts
        if not _survives(config):
            return InStepPolicy(failures, timeout_s, self._board, self._ranks)
        # A rank cannot come back alone where the data held by all wait for it, or one order.
        may_restart = not (config.hold_data or config.record or config.replay)
        show, group_size = partial(self._tell, self._ranks[0]), config.strategy.group_size or 1
        common = (may_restart, failures, self._board, show, group_size, timeout_s)
        shared = () if hosts is None or self._others is None else (hosts.hosts, self._others.ranks_changed)
        return RestartPolicy(config.workers, *common, *shared)

    def run(self, effects: Mapping[int, SignalEffect]) -> RunResult | None:
        config, told, others = self._config, self._told, self._others
        launch = self._launch(effects)
        if (placement := _placement(config)) is not None:
            self._display.show(placement)
        ends = launch.run()
        SnapshotStore(self._folder.snapshots).clean()
        for unfinished in (".tmp-*", ".*.partial"):
            _unlink(self._folder.path, unfinished)
        if isinstance(others, OtherHost):
            return others.outcome(launch.signals)
        if others is not None:
            ends = others.settled(ends, launch.signals, has_result=told.result is not None)
            launch.signals.kill_signal = launch.signals.kill_signal or others.kill_signal
        if launch.signals.kill_signal:
            raise _killed_by(launch.signals, _how_to_resume(config, told.snapshot))
        if told.result is None and ends[0].return_code != 0:
            self._fail(blamed(ends, told.failures, lambda rank: self._state(rank).step))
        if told.result is None:
            if config.job == "train":
                raise _without_result(launch.signals)
            return None
        return self._finished(told.result)

    def _launch(self, effects: Mapping[int, SignalEffect]) -> Launch:
        others, logs = self._others, {rank: self._folder.rank_log(rank) for rank in self._ranks}
        inherited, num_threads = list(self._memory.values()), self._config.threads_per_worker
        common = (self._command, logs, self._board, inherited, self._take, num_threads, self._policy, effects)
        if others is None:
            return Launch(*common, may_fork=True)
        launch = Launch(*common, self._listening(), others, may_fork=True)
        seen = (self._board, self._told.failures, self._keep, self._state, self._folder)
        survives = self._policy if isinstance(self._policy, RestartPolicy) else None
        others.attach(HostDuties(launch.signals, *seen, survives))
        return launch

    def _listening(self) -> dict[int, int]:
        """The descriptor at which each rank listens for those of other hosts."""
        if self._others is None:
            return {}
        return {rank: each.fileno() for rank, each in zip(self._ranks, self._others.met.listening, strict=True)}

    def _command(self, rank: int, pipe: int) -> list[str]:
        life, parent = self._policy.life(rank), os.getpid()
        self._readers[rank] = RecordReader()  # an earlier life may have ended in the middle of a record
        config, listening = self._folder.config, self._listening().get(rank, -1)
        given = RankArguments(
            rank=rank, pipe=pipe, parent=parent, config=config, life=life, listening=listening, **self._memory
        )
        return given.to_command(sys.executable)

    def _take(self, rank: int, data: bytes) -> None:
        for record in self._readers[rank].feed(data):
            self._tell(rank, record)

    def _tell(self, rank: int, record: Record) -> None:
        """Keep the report here, or send it to host 0."""
        if self._others is not None and self._others.forward(rank, record):
            self._told.take(rank, record)
        else:
            self._keep(rank, record)

    def _keep(self, rank: int, record: Record) -> None:
        if self._told.take(rank, record):
            self._display.show(record)

    def _state(self, rank: int) -> RankState:
        """How far a rank is, on this host or as another one told."""
        if rank in self._ranks:
            step = self._board.read(rank, BoardWord.STEPS_DONE)
            return RankState(step, str(self._folder.rank_log(rank)))
        assert isinstance(self._others, Host0)
        # A rank's reason may come before its end, which brings its state.
        return self._others.states.get(rank, RankState(0, self._folder.rank_log(rank).name))

    def _finished(self, told: RunResult) -> RunResult:
        result = with_figures_of(self._folder.result, self._policy.counted(told))
        if result.foreseen is None and self._config.job == "train" and not self._config.by_caffe:
            result = _with_foresight(self._config, result, self._other_programs.share())
        if result.foreseen is not None:
            self._display.show(Notice(level="info", text=str(result.foreseen)))
        write_result(self._folder.result, result)
        replay = self._config.replay
        if replay is not None and (sentence := unlike(RunFolder(replay).result, result)):
            self._display.show(Notice(level="warning", text=sentence))
        self._display.show(Finished(result=result))
        return replace(result, run_folder=self._folder.path)

    def _fail(self, ends: Sequence[RankEnd]) -> NoReturn:
        rank = ends[0].rank
        state = self._state(rank)
        step, log = state.step, state.log
        if rank not in self._ranks:
            log = f"{log} on {self._config.host_of(rank).name}"
        failure, resume = self._told.failures.get(rank), _how_to_resume(self._config, self._told.snapshot)
        if failure is None:
            next_step = f"; {resume}" if self._config.job == "train" else ""  # other jobs never save
            seen = "" if rank in self._ranks and not Path(log).stat().st_size else f"; see {log}"
            raise RankFailed(
                f"rank {rank} {self._policy.how(ends[0])} after step {step}, and the other ranks were ended"
                f"{seen}{next_step}"
            )
        reason = failure.message.removeprefix(f"rank {rank}: ")
        sentence = f"rank {rank}: {reason} (last step {step}; log {log})"
        if failure.kind == InputError.__name__:
            # Wrong input is wrong for every rank: which one met it first says nothing.
            sentence = failure.message
        elif failure.kind == NotFinite.__name__:
            is_finite = "" if self._told.snapshot is None else "the last snapshot has finite weights; "
            sentence = f"rank {rank}: {reason}; {is_finite}{resume}"
        elif failure.kind == DeadlineExceeded.__name__:
            sentence = _silent(ends, self._config.workers) + sentence
        raise error_of(failure.kind, sentence, failure.exit_code, RankFailed)


def _with_foresight(config: RunConfig, result: RunResult, busy: float) -> RunResult:
    """The result with its prediction, if there can be one; see `samovar.predict.foresight.close_loop` and `Ran`."""
    is_plain = config.box is None and config.device == CPU and result.stopped_by is None and not result.factors
    if not is_plain or config.transport != AUTO or any(one.is_gone for one in result.by_worker):
        return result
    rates = [one.samples_per_second for one in result.by_worker]
    samples_per_s = sum(rates) if rates else result.samples_per_second
    ran = Ran(
        Subject(result.net, result.net_parameters, result.threads_per_worker, result.precision),
        config.strategy,
        result.workers,
        result.workers if config.hosts is None else max(config.hosts.sizes),
        result.effective_batch / result.workers,
        result.effective_batch / samples_per_s if samples_per_s else 0.0,
        result.samples // max(1, result.effective_batch),
        result.collective.partition(" ")[0],
        result.bucket_sizes_bytes,
        config.calibration,
        busy,
        result.net_unlearned,
        result.is_compressed,
        result.owner,
    )
    return replace(result, foreseen=foreseen(ran))


def _survives(config: RunConfig) -> bool:
    """Whether others do without a lost worker: none waits for it, or reads data in the memory of another host.

    A library starts no rank again.
    """
    size, hosts = config.strategy.group_size or 1, config.hosts
    if not config.is_async or config.transport != AUTO:
        return False
    if hosts is None:
        return True
    firsts = range(0, config.workers, size)
    return not config.hold_data and all(first + size - 1 in hosts.of(first).ranks for first in firsts)


def run_without_folder(
    config: RunConfig,
    display: Display,
    effects: Mapping[int, SignalEffect] = DEFAULT_EFFECTS,
    others: Host0 | OtherHost | None = None,
) -> RunResult | None:
    """`run_job` in a folder that is deleted afterwards, unless a rank failed and its log says why."""
    with passing_folder(config.job) as passing:
        folder = RunFolder(passing.path)
        try:
            return run_job(replace(config, out=folder.path), folder, display, effects, others)
        except SamovarError as error:
            if error.exit_code == SamovarError.exit_code:
                passing.keep_if_told()
            raise


def remove_unfinished(prefix: Path) -> None:
    """Delete what ranks that were killed have begun to write next to a snapshot_prefix."""
    _unlink(prefix.parent, f".{glob.escape(prefix.name)}_iter_*.partial")


def _unlink(folder: Path, pattern: str) -> None:
    for path in folder.glob(pattern):
        with suppress(OSError):
            path.unlink()


def _without_result(signals: Signals) -> SamovarError:
    """All ranks ended well, but no result came."""
    if number := signals.stop_signal:
        name = signal.Signals(number).name
        return EndedBySignal(f"ended by {name} before there was a result", number)
    return RankFailed("all ranks ended without a result; if there is a snapshot, resume with --snapshot latest")


def _killed_by(signals: Signals, resume: str) -> EndedBySignal:
    name = signal.Signals(signals.kill_signal).name
    sentence = f"ended by {name}"
    if signals.stop_signal:
        sentence = f"ended at once by a second signal ({name}); {resume}"
    return EndedBySignal(sentence, signals.kill_signal)


def _how_to_resume(config: RunConfig, snapshot: Path | None) -> str:
    flag = "-snapshot" if config.by_caffe else "--snapshot"
    return "no snapshot was written" if snapshot is None else f"resume with {flag} {snapshot}"


def _silent(ends: Sequence[RankEnd], num_ranks: int) -> str:
    """The ranks for which the others waited. All give up on a neighbour, but only those that hang are silent."""
    ranks = sorted(set(range(num_ranks)) - {end.rank for end in ends})
    if not ranks:
        return ""
    names = ", ".join(map(str, ranks))
    return f"rank {names} does not answer: " if len(ranks) == 1 else f"ranks {names} do not answer: "


def _placement(config: RunConfig) -> Notice | None:
    """A line if workers share cores, or on which NUMA nodes they are."""
    if config.oversubscribed:
        return Notice(level="warning", text=_oversubscribed(config))
    if config.num_taken_cpus:
        return Notice(level="info", text=_left_alone(config))
    if config.box is not None:
        return None
    lies = spread(config.cpus, numa_nodes())
    workers, threads = counted(config.workers, "worker"), counted(config.threads_per_worker, "thread")
    return Notice(level="info", text=f"{workers} x {threads}, {lies}") if lies else None


def _left_alone(config: RunConfig) -> str:
    taken, threads = counted(config.num_taken_cpus, "core"), counted(config.threads_per_worker, "thread")
    flag = "-threads_per_worker" if config.by_caffe else "--threads-per-worker"
    return f"other programs use {taken}, so each worker has {threads}. Results depend on this number: {flag} fixes it"


def _oversubscribed(config: RunConfig) -> str:
    threads = config.workers * config.threads_per_worker
    return (
        f"{config.workers} workers x {config.threads_per_worker} threads are {threads} threads on "
        f"{min(len(config.cpus[0]), num_available_cpus())} cores: ranks share cores, and speed figures mean little"
    )
