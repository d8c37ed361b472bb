"""Elastic jobs between hosts: a host is lost with its workers, another one comes, and the rest train on."""

import random
import re
import signal
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from samovar.transports.keys import make_key
from tests.multihost.conftest import PORT, Pair
from tests.multiproc.command import Command
from tests.multiproc.elastic_program import PERIOD
from tests.multiproc.test_elastic import (
    NUM_STEPS,
    PROGRAM,
    STRATEGIES,
    assert_no_round_is_left_out,
    is_at,
    lines,
    longest_round,
    told,
    undisturbed,
)

__all__ = ["undisturbed"]
pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


@dataclass
class Job:
    """The same program on both hosts, with these environment variables."""

    folder: Path
    hosts: Pair
    strategy: str
    steps: int
    variables: dict[str, Any] = field(default_factory=dict)

    def on(self, number: int, ranks: int, *words: object, **variables: str) -> Command:
        """The launcher on a host: the first one begins the job, and the other one joins it."""
        begins = ("--join", "away") if number else ("--elastic", "away")
        place = ("--master-addr", self.hosts[0].address, "--master-port", PORT, "--key-file", self.folder / "key.pem")
        flags, arguments = [word for word in words if word != "doomed"], [0] if "doomed" in words else []
        environment = {"OMP_NUM_THREADS": 1} | self.variables | variables
        values = (f"{name}={value}" for name, value in environment.items())
        program = (PROGRAM, self.folder, self.strategy, self.steps, *arguments)
        command = ("run", *begins, *place, "-n", ranks, *flags, *program)
        return Command(*command, folder=self.folder, prefix=(*self.hosts[number].prefix, "env", *values))


def await_key(job: Job, launcher: Command) -> None:
    """The first host makes the key, and the other one reads it."""
    key = job.folder / "key.pem"
    launcher.until(lambda: key.exists() and key.stat().st_size > 0, "the job has its key")


def test_a_host_is_lost_in_mid_round_and_another_one_comes(tmp_path: Path, hosts: Pair) -> None:
    """Its launcher is killed, and takes its workers with it. The job waits for at least four, so the rest is the same
    at every run."""
    job = Job(tmp_path, hosts, "sync-easgd", 60)
    with job.on(0, 2, "--min-workers", 4) as first:
        await_key(job, first)
        with job.on(1, 2, "doomed") as lost:
            first.until(lambda: told(tmp_path, "doomed"), "a worker is in its third round")
            lost.send(signal.SIGKILL)
            with job.on(1, 2) as joining:
                ended, joined = first.wait(), joining.wait()
    assert (ended.return_code, joined.return_code) == (0, 0), ended.errors + joined.errors
    assert re.search(r"worker \d+ \(process \d+ on .+\), worker \d+ \(process \d+ on .+\) gone", ended.errors)
    workers = told(tmp_path, "ended")
    assert [worker["step"] for worker in workers] == 4 * [job.steps]
    assert all(worker["weights"] == workers[0]["weights"] for worker in workers)
    assert sorted(one["step"] for one in told(tmp_path, "began")) == [0] * 4 + [3 * PERIOD] * 2


def test_a_cut_cable_ends_the_workers_behind_it_and_nobody_else(tmp_path: Path, hosts: Pair) -> None:
    job = Job(tmp_path, hosts, "local-sgd", NUM_STEPS, {"TEST_PAUSE_S": 0.02})
    with job.on(0, 2) as first:
        await_key(job, first)
        with job.on(1, 1) as behind:
            first.until(lambda: len(told(tmp_path, "there")) == 3, "all have started")
            (tmp_path / "begin").touch()
            first.until(
                lambda: any(sum(line[1] == 3 for line in worker) > 2 * PERIOD for worker in lines(tmp_path)),
                "all have exchanged",
            )
            hosts[1].set_interface("down")
            ended, cut = first.wait(), behind.wait()
    assert ended.return_code == 0, ended.errors
    assert "2 workers exchange now, 3 before" in ended.errors
    assert cut.return_code != 0
    assert "the host that began it is lost" in cut.errors
    assert [worker["step"] for worker in told(tmp_path, "ended")] == 2 * [job.steps]
    assert_no_round_is_left_out(tmp_path)


@pytest.mark.parametrize("seed", range(6))
def test_a_host_is_killed_and_another_comes_at_any_moment(
    tmp_path: Path, hosts: Pair, seed: int, undisturbed: dict[str, float]
) -> None:
    """Workers that come wait for at most two rounds, and the loss is that of a run without all this, to 1 %."""
    draw, strategy = random.Random(seed), STRATEGIES[seed % 3]
    events = sorted((draw.randrange(NUM_STEPS - 4 * PERIOD), what) for what in ("kill", "come"))
    job = Job(tmp_path, hosts, strategy, NUM_STEPS, {"TEST_PAUSE_S": 0.005})
    with ExitStack() as stack:
        first = stack.enter_context(job.on(0, 2, "--min-workers", 2))
        await_key(job, first)
        second = stack.enter_context(job.on(1, 2))
        third = stack.enter_context(job.on(1, 2, TEST_NAME="late"))
        first.until(lambda: len(told(tmp_path, "there")) == 6, "all have started")
        (tmp_path / "begin").touch()
        for at, what in events:
            first.until(partial(is_at, tmp_path, at), f"step {at}")
            second.send(signal.SIGKILL) if what == "kill" else (tmp_path / "come-late").touch()
        ended, joined = first.wait(), third.wait()
    assert (ended.return_code, joined.return_code) == (0, 0), ended.errors + joined.errors
    workers = told(tmp_path, "ended")
    assert len(workers) == 4
    assert all(worker["weights"] == workers[0]["weights"] for worker in workers)
    waited = [int(number) for number in re.findall(r"at step [0-9,]+ after (\d+) round", joined.errors)]
    assert waited
    assert max(waited) <= 2
    assert_no_round_is_left_out(tmp_path)
    loss, wanted = workers[0]["loss"], undisturbed[strategy]
    print(f"{strategy}: {events}: loss {loss:.5f} against {wanted:.5f}, longest round {longest_round(tmp_path):.1f}")
    assert loss == pytest.approx(wanted, rel=0.01)


def test_another_job_or_another_key_is_refused(tmp_path: Path, hosts: Pair) -> None:
    job = Job(tmp_path, hosts, "diloco", 8)
    with job.on(0, 1, "--min-workers", 2) as first:
        await_key(job, first)
        make_key(tmp_path / "other.pem")
        for words, sentence in (
            (("--key-file", tmp_path / "other.pem"), "does not hold the same key"),
            (("--join", "home"), "the elastic job here is 'away'"),
        ):
            with job.on(1, 1, *words) as refused:
                ended = refused.wait()
            assert ended.return_code == 2
            assert sentence in ended.errors
        with job.on(1, 1) as joining:
            assert (first.wait().return_code, joining.wait().return_code) == (0, 0)
