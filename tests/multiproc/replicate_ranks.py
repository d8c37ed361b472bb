"""Starting the ranks of a program over one segment, and running scenarios in them one after the other.

A scenario is a function of a fresh `ProcessGroup` that returns a JSON value; all scenarios of a program run in the same
processes, because importing torch costs more than most of them.
"""

import itertools
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from samovar import _native
from samovar.api.process_group import ProcessGroup
from samovar.collectives.engine import PlannedCollectives
from samovar.core.group import Group
from samovar.transports.shm import ShmTransport, create_segment
from tests import loaded

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 280.0  # of all scenarios of a program, on a busy machine
RANK_TIMEOUT_S = 60.0

Scenario = Callable[[ProcessGroup], Any]
_failed: dict[tuple[object, ...], str] = {}


def run_ranks(module: str, world_size: int, *arguments: str) -> dict[str, list[Any]]:
    """The results of every rank, by scenario, in rank order; {"error": traceback} if it raised.

    A program that failed as a whole is not started again: many tests ask for the same one.
    """
    key = (module, world_size, *arguments)
    if key in _failed:
        pytest.fail(_failed[key], pytrace=False)
    try:
        return _run_ranks(module, world_size, *arguments)
    except pytest.fail.Exception as failure:
        _failed[key] = str(failure)
        raise


def _run_ranks(module: str, world_size: int, *arguments: str) -> dict[str, list[Any]]:
    segment = create_segment(world_size)
    try:
        with loaded.free() as process:
            start = _started if process is None else partial(_forked, process)
            outputs = start(module, world_size, segment, arguments, TIMEOUT_S)
    finally:
        os.close(segment)
    lines = [[json.loads(line) for line in output.splitlines()] for output in outputs]
    return {row[0]["name"]: [line["result"] for line in row] for row in zip(*lines, strict=True)}


def _forked(
    process: loaded.Loaded, module: str, world_size: int, segment: int, arguments: Sequence[str], timeout_s: float
) -> list[str]:
    """What the ranks write, as forks of a process that has loaded torch."""
    place = f"fd:/proc/{os.getpid()}/fd/{segment}"
    words = [[str(rank), str(world_size), place, *arguments] for rank in range(world_size)]
    with TemporaryDirectory() as folder:
        files = [[Path(folder, f"{kind}{rank}") for kind in ("output", "errors")] for rank in range(world_size)]
        for path in itertools.chain(*files):
            path.touch()  # a rank that another one's failure ends may not have begun
        failed = process.ranks(module, words, files, timeout_s)
        if failed != 0:
            which = f"{timeout_s} s are over" if failed is None else f"rank {failed - 1}"
            pytest.fail(f"{which}: {'; '.join(errors.read_text() for _, errors in files)}", pytrace=False)
        return [output.read_text() for output, _ in files]


def _started(module: str, world_size: int, segment: int, arguments: Sequence[str], timeout_s: float) -> list[str]:
    """What the ranks write, each in an interpreter of its own."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(rank), str(world_size), str(segment), *arguments],
            cwd=ROOT,
            pass_fds=[segment],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        return _outputs(ranks, timeout_s)
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def succeeded(results: Mapping[str, list[Any]], name: str) -> list[Any]:
    """The results of every rank in a scenario; fails with the traceback of the first that raised."""
    for result in results[name]:
        assert "error" not in result, result["error"]
    return results[name]


def _outputs(ranks: Sequence[subprocess.Popen[str]], timeout_s: float) -> list[str]:
    """The files of the ranks; fails with the errors of the first that fails."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        waiting = [threads.submit(process.communicate, timeout=timeout_s) for process in ranks]
        for done in as_completed(waiting):
            process = ranks[waiting.index(done)]
            if done.exception() is not None or process.returncode != 0:
                for other in ranks:
                    other.kill()
                pytest.fail(f"rank {ranks.index(process)}: {done.exception() or done.result()[1]}", pytrace=False)
    return [done.result()[0] for done in waiting]


def serve_rank(scenarios: Mapping[str, Scenario]) -> list[str]:
    """The body of a rank program; gives the arguments behind the three that `run_ranks` adds."""
    rank, world_size, segment = (int(argument) for argument in sys.argv[1:4])
    _native.die_with_parent()
    torch.set_num_threads(1)
    transport = ShmTransport(segment, Group(rank, world_size), oversubscribed=True)
    collectives = PlannedCollectives(transport, lambda _num_bytes: "direct")
    for name in sys.argv[4:] or scenarios:
        result = _outcome(scenarios[name], ProcessGroup(collectives, RANK_TIMEOUT_S))
        sys.stdout.write(json.dumps({"name": name, "result": result}) + "\n")
    transport.close()
    return sys.argv[4:]


def _outcome(scenario: Scenario, process_group: ProcessGroup) -> Any:
    try:
        return scenario(process_group)
    except Exception:
        return {"error": traceback.format_exc()}
