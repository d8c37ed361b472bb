"""The launcher's part of a job: run folder, ranks, what they tell, the exit code."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from samovar.checkpoint.store import SnapshotStore
from samovar.cli.rank_arguments import RankArguments
from samovar.config import RunConfig
from samovar.core.board import BoardWord
from samovar.core.errors import SamovarError
from samovar.launch import Launch, RankEnd
from samovar.report.console import Console
from samovar.report.pipe import RecordReader
from samovar.report.records import Failed, Finished, Notice, Record, Started
from samovar.report.result import RunResult, write_result
from samovar.report.run_folder import RunFolder, write_json_atomic
from samovar.transports.shm import Board, create_segment

EXIT_PREEMPTED = 75
_PREEMPTING = ("SIGTERM", "SIGUSR1")


@dataclass(slots=True)
class Told:
    """What the ranks told: the result (rank 0's), whether training began, who failed and why."""

    result: RunResult | None = None
    started: bool = False
    failures: dict[int, Failed] = field(default_factory=dict)


def run_job(config: RunConfig, folder: RunFolder, console: Console) -> int:
    """Start the ranks of `config` with their files in `folder`, show what they tell; the exit code."""
    write_json_atomic(folder.config, config.to_json())
    told = Told()
    with ExitStack() as stack:
        segment = create_segment(config.workers)
        stack.callback(os.close, segment)
        board = Board(segment, config.workers)
        launch = Launch(
            _command(folder, segment),
            config.workers,
            board,
            [segment],
            [folder.rank_log(rank) for rank in range(config.workers)],
            config.threads_per_worker,
            _take_records(config.workers, told, console),
        )
        if config.oversubscribed:
            console.show(Notice(level="warning", text=_oversubscribed(config)))
        ends = launch.run()
        SnapshotStore(folder.snapshots).clean()
        if launch.signals.kill_signal:
            return _killed_by(launch.signals.kill_signal, console)
        if ends[0].return_code != 0:
            return _failed(ends[0], told, board, folder, console)
    return _done(told, folder, console)


def remove_if_unused(folder: RunFolder) -> None:
    """Take back a new run folder in which no training began: it would only hold a configuration."""
    shutil.rmtree(folder.path, ignore_errors=True)


def _command(folder: RunFolder, segment: int) -> Callable[[int, int], list[str]]:
    def command(rank: int, pipe: int) -> list[str]:
        return RankArguments(rank, segment, pipe, os.getpid(), folder.config).to_command(sys.executable)

    return command


def _take_records(num_ranks: int, told: Told, console: Console) -> Callable[[int, bytes], None]:
    readers = [RecordReader() for _ in range(num_ranks)]

    def take(rank: int, data: bytes) -> None:
        for record in readers[rank].feed(data):
            _note(record, told, rank)
            if not isinstance(record, Failed | Finished):
                console.show(record)

    return take


def _note(record: Record, told: Told, rank: int) -> None:
    match record:
        case Started():
            told.started = True
        case Finished():
            told.result = record.result
        case Failed():
            told.failures[rank] = record


def _done(told: Told, folder: RunFolder, console: Console) -> int:
    if told.result is None:
        return 0
    write_result(folder.result, told.result)
    console.show(Finished(result=told.result))
    return EXIT_PREEMPTED if told.result.stopped_by in _PREEMPTING else 0


def _killed_by(number: int, console: Console) -> int:
    console.error(f"ended at once by a second signal ({signal.Signals(number).name}); no snapshot was written")
    return 128 + number


def _failed(end: RankEnd, told: Told, board: Board, folder: RunFolder, console: Console) -> int:
    step = board.read(end.rank, BoardWord.STEPS_DONE)
    failure = told.failures.get(end.rank)
    if failure is not None:
        # Wrong input is wrong for every rank: which one met it first says nothing.
        shared = failure.kind == "InputError"
        console.show(
            Failed(
                rank=None if shared else failure.rank,
                message=failure.message
                if shared
                else f"{failure.message} (last step {step}; log {folder.rank_log(end.rank)})",
                step=step,
                exit_code=failure.exit_code,
                kind=failure.kind,
            )
        )
        return failure.exit_code
    console.error(
        f"rank {end.rank}: {_how(end)} after step {step}; the other ranks were ended; "
        f"see {folder.rank_log(end.rank)}, go on with --snapshot latest if a snapshot was written"
    )
    return SamovarError.exit_code


def _how(end: RankEnd) -> str:
    if end.return_code < 0:
        number = -end.return_code
        hint = ", perhaps by the system for lack of memory" if number == signal.SIGKILL else ""
        return f"killed by signal {number} ({signal.Signals(number).name}){hint}"
    return f"ended with exit code {end.return_code}"


def _oversubscribed(config: RunConfig) -> str:
    threads = config.workers * config.threads_per_worker
    return (
        f"{config.workers} workers x {config.threads_per_worker} threads are {threads} threads on "
        f"{len(config.cpus[0])} cores: ranks share cores, and speed figures mean little"
    )
