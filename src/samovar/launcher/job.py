"""The launcher's part of a job: run folder, ranks, what they tell, the exit code."""

import glob
import math
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from samovar.box.board import create_board
from samovar.checkpoint.store import SnapshotStore
from samovar.config import RunConfig
from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, SamovarError
from samovar.core.host import create_empty
from samovar.launch.numa import apart, numa_nodes, spread
from samovar.launch.passing_folder import passing_folder
from samovar.launch.processes import DEFAULT_EFFECTS, Launch, RankEnd, SignalEffect, Signals
from samovar.launch.rank_arguments import RankArguments
from samovar.launcher.restart_policy import RestartPolicy, blamed
from samovar.report.pipe import RecordReader
from samovar.report.records import Failed, Finished, Notice, Record, SnapshotWritten
from samovar.report.result import RunResult, write_result
from samovar.report.run_folder import RunFolder, write_json_atomic
from samovar.report.wording import counted
from samovar.transports.shm import BoardWord, RunBoard, create_segment

EXIT_PREEMPTED = 75
_PREEMPTING = ("SIGTERM", "SIGUSR1")
_STOPPED_SHARE = 0.8  # of the timeout: before those of its group give up, who can only say whom they waited for
_LEAST_PATIENCE_S = 3.0  # on a busy machine those that wait in vain do not give up in the same second


@dataclass(slots=True)
class Told:
    """What the ranks told: the result (rank 0's), failures and their reasons, topics of notices, the last snapshot."""

    result: RunResult | None = None
    failures: dict[int, Failed] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    snapshot: Path | None = None

    def is_news(self, record: Record) -> bool:
        """Whether no rank has told the same."""
        topic = record.topic if isinstance(record, Notice) else ""
        is_known = topic in self.topics
        self.topics |= {topic} - {""}
        return not is_known


class Display(Protocol):
    """Who shows what ranks tell."""

    def show(self, record: Record) -> None: ...
    def error(self, sentence: str) -> None: ...


def run_job(
    config: RunConfig,
    folder: RunFolder,
    console: Display,
    effects: Mapping[int, SignalEffect] = DEFAULT_EFFECTS,
) -> int:
    """Start the ranks of `config` with their files in `folder`, show what they tell; the exit code.

    Ranks that are pinned get the cores that other runs leave. `effects` are those of signals that do not stop the job.
    """
    told = Told(snapshot=config.snapshot)
    with ExitStack() as stack:
        config = _begun(config, folder, stack)
        memory = _memory(config, stack)
        board = RunBoard(memory["segment"], config.workers)
        group_size = config.strategy.group_size or 1
        survivors = RestartPolicy(config.workers, _may_restart(config), told.failures, board, console.show, group_size)
        take = _take_records(config.workers, told, console)
        launch = _launch(config, folder, memory, board, survivors, take, told, effects)
        if (placement := _placement(config)) is not None:
            console.show(placement)
        ends = launch.run()
        _remove_unfinished(folder)
        if launch.signals.kill_signal:
            return _killed_by(launch.signals, console)
        if told.result is None and ends[0].return_code != 0:
            return _failed(blamed(ends, told.failures), told, survivors, board, folder, console)
    if told.result is None and config.job == "train":
        return _without_result(launch.signals, console)
    return _done(told, survivors, folder, console)


def _launch(
    config: RunConfig,
    folder: RunFolder,
    memory: Mapping[str, int],
    board: RunBoard,
    survivors: RestartPolicy,
    take: Callable[[int, bytes], None],
    told: Told,
    effects: Mapping[int, SignalEffect],
) -> Launch:
    """Where ranks wait for each other, one that stands still is told of by those that wait; else it is looked for."""
    return Launch(
        _command(folder, memory, survivors),
        config.workers,
        board,
        list(memory.values()),
        [folder.rank_log(rank) for rank in range(config.workers)],
        config.threads_per_worker,
        take,
        survivors.patience_s if config.is_free else partial(_patience_s, told, config.timeout_s),
        effects,
        survivors.is_replaced if config.is_free else lambda _end: False,
        survivors.ended_with,
        survivors.started_after,
        _STOPPED_SHARE * config.timeout_s if config.is_free else math.inf,
        survivors.stopped,
    )


def _begun(config: RunConfig, folder: RunFolder, stack: ExitStack) -> RunConfig:
    """`config` with the cores that are this run's until `stack` closes; it stands in the run folder from now on."""
    config = replace(config, cpus=stack.enter_context(apart(config.cpus)))
    write_json_atomic(folder.config, config.to_json())
    return config


def _memory(config: RunConfig, stack: ExitStack) -> dict[str, int]:
    """Descriptors of what ranks share, by their names on a rank's command line; `stack` closes them.

    The launcher keeps it, so that a rank that is started again finds it, and nothing is left when the launcher ends.
    """
    memory = {"segment": create_segment(config.workers)}
    stack.callback(os.close, memory["segment"])
    if config.strategy.needs_center and config.box is None:
        memory |= {"board": create_board(config.workers), "center": create_empty()}
        stack.callback(os.close, memory["board"])
        stack.callback(os.close, memory["center"])
    return memory


def _may_restart(config: RunConfig) -> bool:
    """Whether a rank can come back alone: not where the data held by all wait for it, or one order."""
    return not (config.hold_data or config.record or config.replay)


def run_without_folder(
    config: RunConfig, console: Display, effects: Mapping[int, SignalEffect] = DEFAULT_EFFECTS
) -> int:
    """`run_job` with files in a folder that goes away with the job, unless a rank failed: its log tells why."""
    with passing_folder(config.job) as passing:
        folder = RunFolder(passing.path)
        code = run_job(replace(config, out=folder.path), folder, console, effects)
        if code == SamovarError.exit_code and _have_content(folder, config.workers):
            passing.keep()
    return code


def _have_content(folder: RunFolder, workers: int) -> bool:
    """Whether any rank's log says something."""
    logs = [folder.rank_log(rank) for rank in range(workers)]
    return any(log.exists() and log.stat().st_size for log in logs)


def remove_if_unused(folder: RunFolder) -> None:
    """Take back a new run folder in which no training began: it would only hold a configuration."""
    shutil.rmtree(folder.path, ignore_errors=True)


def _remove_unfinished(folder: RunFolder) -> None:
    """Remove what a killed rank was just writing."""
    SnapshotStore(folder.snapshots).clean()
    for path in folder.path.glob(".tmp-*"):
        with suppress(OSError):
            path.unlink()


def remove_unfinished(prefix: Path) -> None:
    """The same beside a snapshot_prefix."""
    for path in prefix.parent.glob(f".tmp-{glob.escape(prefix.name)}_iter_*"):
        with suppress(OSError):
            path.unlink()


def _patience_s(told: Told, timeout_s: float, end: RankEnd) -> float:
    """A rank that waited in vain is not the one to blame: the others show it by giving up too, or not."""
    failure = told.failures.get(end.rank)
    if failure is None or failure.kind != DeadlineExceeded.__name__:
        return 0.0
    return max(_LEAST_PATIENCE_S, 0.1 * timeout_s)


def _command(folder: RunFolder, memory: Mapping[str, int], survivors: RestartPolicy) -> Callable[[int, int], list[str]]:
    def command(rank: int, pipe: int) -> list[str]:
        life, parent = survivors.life(rank), os.getpid()
        given = RankArguments(rank=rank, pipe=pipe, parent=parent, config=folder.config, life=life, **memory)
        return given.to_command(sys.executable)

    return command


def _take_records(num_ranks: int, told: Told, console: Display) -> Callable[[int, bytes], None]:
    readers = [RecordReader() for _ in range(num_ranks)]

    def take(rank: int, data: bytes) -> None:
        for record in readers[rank].feed(data):
            _note(record, told, rank)
            if not isinstance(record, Failed | Finished) and told.is_news(record):
                console.show(record)

    return take


def _note(record: Record, told: Told, rank: int) -> None:
    match record:
        case Finished():
            told.result = record.result
        case Failed():
            told.failures[rank] = record
        case SnapshotWritten():
            told.snapshot = Path(record.path)


def _done(told: Told, survivors: RestartPolicy, folder: RunFolder, console: Display) -> int:
    if told.result is None:
        return 0
    result = survivors.counted(told.result)
    write_result(folder.result, result)
    console.show(Finished(result=result))
    return EXIT_PREEMPTED if result.stopped_by in _PREEMPTING else 0


def _without_result(signals: Signals, console: Display) -> int:
    """All ranks ended well, and none told what the run came to."""
    if signals.stop_signal:
        name = signal.Signals(signals.stop_signal).name
        console.error(f"ended by {name} before there was a result to tell")
        return 128 + signals.stop_signal
    console.error("all ranks ended, and none told a result; go on with --snapshot latest if a snapshot was written")
    return SamovarError.exit_code


def _killed_by(signals: Signals, console: Display) -> int:
    name = signal.Signals(signals.kill_signal).name
    if signals.stop_signal:
        console.error(f"ended at once by a second signal ({name}); no snapshot was written")
    else:
        console.error(f"ended by {name}")
    return 128 + signals.kill_signal


def _failed(
    ends: Sequence[RankEnd], told: Told, survivors: RestartPolicy, board: RunBoard, folder: RunFolder, console: Display
) -> int:
    """Tell why the first rank of `ends` failed."""
    rank = ends[0].rank
    step, log = board.read(rank, BoardWord.STEPS_DONE), folder.rank_log(rank)
    failure = told.failures.get(rank)
    if failure is None:
        console.error(
            f"rank {rank} {survivors.how(ends[0])} after step {step}; the other ranks were ended; "
            f"see {log}, go on with --snapshot latest if a snapshot was written"
        )
        return SamovarError.exit_code
    if failure.kind == InputError.__name__:
        # Wrong input is wrong for every rank: which one met it first says nothing.
        console.show(replace(failure, rank=None, step=step))
        return failure.exit_code
    reason = failure.message.removeprefix(f"rank {rank}: ")
    sentence = f"rank {rank}: {reason} (last step {step}; log {log})"
    if failure.kind == NotFinite.__name__:
        sentence = f"rank {rank}: {reason}; {_last_snapshot(told.snapshot)}"
    if failure.kind == DeadlineExceeded.__name__:
        sentence = _silent(ends, board.launcher_row) + sentence
    console.error(sentence)
    return failure.exit_code


def _last_snapshot(path: Path | None) -> str:
    if path is None:
        return "no snapshot was written"
    return f"the last snapshot, whose weights are finite, is {path}: go on with --snapshot {path}"


def _silent(ends: Sequence[RankEnd], num_ranks: int) -> str:
    """Who made the others wait: each gives up on its neighbour, but only those that hang say nothing."""
    ranks = sorted(set(range(num_ranks)) - {end.rank for end in ends})
    if not ranks:
        return ""
    names = ", ".join(map(str, ranks))
    return f"rank {names} does not answer: " if len(ranks) == 1 else f"ranks {names} do not answer: "


def _placement(config: RunConfig) -> Notice | None:
    """That workers share cores, or how they lie on several NUMA nodes."""
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
    return (
        f"other programs compute on {taken}, so each worker has {threads}; with another number the bits differ: "
        "--threads-per-worker fixes it"
    )


def _oversubscribed(config: RunConfig) -> str:
    threads = config.workers * config.threads_per_worker
    return (
        f"{config.workers} workers x {config.threads_per_worker} threads are {threads} threads on "
        f"{len(config.cpus[0])} cores: ranks share cores, and speed figures mean little"
    )
