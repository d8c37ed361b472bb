"""`samovar.replicate` at a box, of this host or over the network, and ranks that are killed."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from samovar.transports.shm import create_segment
from tests.multiproc.command import wait_until
from tests.multiproc.replicate_ranks import ROOT
from tests.multiproc.served import Served

PROGRAM = Path(__file__).with_name("replicate_box_program.py")
SAMOVAR = Path(sys.executable).with_name("samovar")
WAIT_S = 250.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@contextmanager
def started(*command: str | Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that has written its first line; it is ended at the end if it still runs."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=ROOT, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline(), process.stderr.read()
            yield process
        finally:
            process.terminate()
            process.wait(WAIT_S)


def script(place: str, key_file: str | Path, join: str, number: int, steps: int) -> list[str | Path]:
    total = 40 * 1 + 30 * 100
    return [sys.executable, PROGRAM, place, key_file, join, str(number), str(steps), str(total)]


def final(process: "subprocess.Popen[str]") -> list[float]:
    output, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    weights: list[float] = json.loads(output.splitlines()[-1])["final"]
    return weights


@pytest.mark.parametrize("is_remote", [False, True])
def test_jobs_share_the_center_of_a_box_and_every_step_counts_once(is_remote: bool, tmp_path: Path) -> None:
    """A second job joins the first one's buffer; sums of whole numbers are exact."""
    box = Served(tmp_path)
    with box.running() as server:
        place, key_file = (box.there[1], box.key) if is_remote else (box.name, "-")
        with started(*script(str(place), key_file, "", 1, 40)) as first:
            twice = subprocess.run(script(str(place), key_file, "", 1, 40), capture_output=True, text=True, check=False)
            assert "has a buffer 'sum' already; join=True trains on it" in twice.stderr
            with started(*script(str(place), key_file, "join", 100, 30)) as second:
                wait_until(lambda: isinstance(box.members()[0]["loss"], float), "the first one shows its loss")
                assert final(second) == final(first) == [3040.0] * 8
        server.send(signal.SIGTERM)
        assert server.wait().return_code == 0


def test_a_job_cannot_join_what_is_not_there() -> None:
    box = f"test-{uuid.uuid4().hex}"
    with started(SAMOVAR, "box", "serve", "--box", box):
        alone = subprocess.run(script(box, "-", "join", 1, 1), capture_output=True, text=True, check=False)
    assert f"rank 0: box '{box}': no buffer 'sum'; there are: none" in alone.stderr
    nobody = subprocess.run(script(box, "-", "", 1, 1), capture_output=True, text=True, check=False)
    assert f"nobody serves box '{box}' on this host" in nobody.stderr


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("shm-easgd", "ended before; their updates stay in the center"),
        ("async-msgd", "ended before; their updates stay in the center"),
        ("hybrid-easgd", "rank 1"),
        ("round-robin-easgd", "rank 1"),
    ],
)
def test_others_go_on_without_a_killed_rank_unless_their_steps_wait_for_it(strategy: str, words: str) -> None:
    """Rank 1 of three kills itself."""
    segment = create_segment(3)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.multiproc.replicate_killed_rank", str(rank), "3", str(segment), strategy],
            cwd=ROOT,
            pass_fds=[segment],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    os.close(segment)
    outputs = [process.communicate(timeout=WAIT_S) for process in ranks]
    assert ranks[1].returncode == -9
    results = [json.loads(outputs[rank][0])["result"] for rank in (0, 2)]
    if "center" in words:
        assert words in outputs[0][1]
        assert results[0]["final"] == results[1]["final"]
    else:
        assert all(words in result["error"] for result in results), results
