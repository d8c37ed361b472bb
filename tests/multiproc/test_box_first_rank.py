"""The rank that makes a buffer of a box and gives it its first weights, killed before it has."""

import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

from samovar.box.joining import look_at, parse_endpoint
from samovar.core.clock import Deadline
from samovar.formats.caffe.caffemodel import LayerRecord, encode_caffemodel
from tests.multiproc.command import TIMEOUT_S, Command, metrics_of, result_of
from tests.multiproc.held_file import held
from tests.multiproc.leftovers import living
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.served import Arguments, Served

ENDLESS = 10_000_000
GROUPS_OF_TWO: Arguments = ("--strategy", "hybrid-easgd", "--group-size", 2)


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    net = write_net(tmp_path_factory.mktemp("nets"), digits)
    return write_solver(net, ENDLESS, test_initialization="false", display=1)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A file that every rank of a first launch reads when it has its seat, before the buffer is filled."""
    path = tmp_path / "first.caffemodel"
    blobs = [np.full((10, 32), 0.01, np.float32), np.zeros(10, np.float32)]
    path.write_bytes(encode_caffemodel("narrow", [LayerRecord("ip2", "InnerProduct", ["ip1"], ["ip2"], blobs)]))
    return path


def start(solver: Path, where: Arguments, buffer: str, out: Path, *more: object) -> Command:
    flags = ("--solver", solver, "--threads-per-worker", 1, *where, "--buffer", buffer, "--out", out)
    return Command("train", *flags, *more, folder=out.parent)


def kill_for_good(command: Command) -> None:
    """Rank 0, and once more what it is started again as, which nothing follows."""
    before = command.ranks()
    before[0].kill()
    command.until(lambda: is_another(command, 0, before), "it is back")
    command.ranks()[0].kill()
    command.until(lambda: 0 not in command.ranks(), "it is gone")


def num_seated(served: Served, buffer: str) -> int:
    """How many living members the buffer has."""
    if buffer not in served.names():
        return 0
    rows = look_at(parse_endpoint(served.name, None), buffer, "test", Deadline.after(TIMEOUT_S)).rows
    return sum(row.is_alive for row in rows)


def is_another(command: Command, rank: int, before: dict[int, psutil.Process]) -> bool:
    """Whether the rank's process is there, and not the one of `before`."""
    process = command.ranks().get(rank)
    return process is not None and process.pid != before[rank].pid


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("is_far", [False, True])
def test_a_group_whose_first_rank_is_killed_before_it_filled_the_buffer_begins_together(
    served: Served, solver: Path, buffer: str, weights: Path, tmp_path: Path, is_far: bool
) -> None:
    """The other group and a launch that joins wait meanwhile, and all of them train then."""
    outs, where = (tmp_path / "one", tmp_path / "two"), served.there if is_far else served.here
    more = (*GROUPS_OF_TWO, "--workers", 4, "--weights", weights)
    with held(weights) as file, start(solver, where, buffer, outs[0], *more) as first:
        first.until(lambda: file.is_wanted and num_seated(served, buffer) == 4, "all have their seats")
        before = first.ranks()
        with start(solver, served.here, buffer, outs[1], *GROUPS_OF_TWO, "--workers", 2, "--join") as second:
            second.until(lambda: num_seated(served, buffer) == 6, "others have joined")
            before[0].kill()
            first.until(lambda: all(is_another(first, rank, before) for rank in (0, 1)), "the group is back")
            file.let_go()
            for command, out, ranks in ((first, outs[0], range(4)), (second, outs[1], range(2))):
                command.until(lambda: is_at_work(out, ranks), f"{out.name} trains")  # noqa: B023
            for command in (second, first):
                command.send(signal.SIGINT)
                assert command.wait().return_code == 0
    result = result_of(outs[0])
    assert [worker["restarts"] for worker in result["by_worker"]] == [1, 1, 0, 0]
    assert [first.ranks(), living(before.values())] == [{}, []]


def is_at_work(out: Path, ranks: range) -> bool:
    """Whether each rank has made 10 steps."""
    lines = metrics_of(out, "workers")
    return bool(lines) and all(lines[-1]["steps"][rank] > 10 for rank in ranks)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_first_rank_that_is_gone_for_good_ends_all_who_wait_for_its_weights(
    served: Served, solver: Path, buffer: str, weights: Path, tmp_path: Path
) -> None:
    """Long before their --timeout; and no buffer is left for which others would wait."""
    patient: Arguments = ("--strategy", "async-easgd", "--workers", 2, "--timeout", 1000)
    with (
        held(weights) as file,
        start(solver, served.here, buffer, tmp_path / "one", *patient, "--weights", weights) as first,
    ):
        first.until(lambda: file.is_wanted and num_seated(served, buffer) == 2, "both have their seats")
        with start(solver, served.there, buffer, tmp_path / "two", *patient, "--join") as second:
            second.until(lambda: num_seated(served, buffer) == 4, "others have joined")
            kill_for_good(first)
            file.let_go()
            ends = first.wait(), second.wait()
    assert [ended.return_code for ended in ends] == [3, 3], ends
    assert "rank 0 was killed by signal 9" in ends[0].errors
    assert f"buffer {buffer!r} of the box at" in ends[1].errors
    assert "gets no first weights: the rank that should write them has ended for good" in ends[1].errors
    assert buffer not in served.names()


@pytest.mark.slow
def test_a_first_rank_that_is_gone_for_good_ends_a_run_at_its_own_center(
    solver: Path, weights: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    flags = ("--strategy", "async-easgd", "--workers", 2, "--threads-per-worker", 1, "--timeout", 1000, "--out", out)
    with (
        held(weights) as file,
        Command("train", "--solver", solver, "--weights", weights, *flags, folder=tmp_path) as run,
    ):
        run.until(lambda: file.is_wanted, "they begin")
        kill_for_good(run)
        file.let_go()
        ended = run.wait()
    assert ended.return_code == 3
    assert "rank 0 was killed by signal 9" in ended.errors
