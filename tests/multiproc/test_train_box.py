"""Launches that train at one box: together, one after the other, and when one of them, a worker or the server dies."""

import re
import signal
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from samovar.box.buffers import BufferShape
from samovar.box.local import LocalBox
from samovar.core.clock import Deadline
from samovar.transports.keys import make_key
from tests.multiproc.command import TIMEOUT_S, Command, Ended, metrics_of, result_of, run, succeed
from tests.multiproc.leftovers import living, sessions_of, unfinished
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.served import Arguments, Served

NUM_STEPS, STEPS_OF_TWO = 150, 600
ENDLESS = 10_000_000


@pytest.fixture(scope="module")
def solvers(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> dict[int, Path]:
    """A short run and one of hours."""
    net = write_net(tmp_path_factory.mktemp("nets"), digits)
    return {steps: write_solver(net, steps, test_initialization="false", display=1) for steps in (NUM_STEPS, ENDLESS)}


def arguments_of(solver: Path, where: Arguments, buffer: str, out: Path, *more: object) -> Arguments:
    given = more if "--strategy" in more else ("--strategy", "async-easgd", "--sync-period", 2, *more)
    flags = ("--solver", solver, "--threads-per-worker", 1, *where, "--buffer", buffer, "--out", out)
    return ("train", *flags, *given)


def start(solver: Path, where: Arguments, buffer: str, out: Path, *more: object) -> Command:
    return Command(*arguments_of(solver, where, buffer, out, *more), folder=out.parent, is_forked=True)


def wait_for_more(command: Command, out: Path, count: int = 5) -> None:
    """Until the launch has shown `count` lines of steps more."""
    before = len(metrics_of(out, "train"))
    command.until(lambda: len(metrics_of(out, "train")) >= before + count, f"{out.name} goes on")


def suspended(command: Command) -> list[psutil.Process]:
    """All its ranks, which stand still now: it might be at its end before another launch has been started."""
    ranks = list(command.ranks().values())
    for rank in ranks:
        rank.suspend()
    return ranks


def resume(ranks: list[psutil.Process]) -> None:
    for rank in ranks:
        rank.resume()


def stop(command: Command) -> Ended:
    """Ctrl-C, which must end the launch well and leave nothing."""
    processes = list(command.ranks().values())
    command.send(signal.SIGINT)
    ended = command.wait()
    assert ended.return_code == 0, ended.errors
    assert living(processes) == []
    assert sessions_of([command.process.pid, *(process.pid for process in processes)]) == []
    return ended


@pytest.mark.timeout(700)  # under load: two launches from beginning to end
def test_a_launch_here_and_one_that_joins_from_elsewhere_end_with_one_center(
    served: Served, solvers: dict[int, Path], buffer: str, tmp_path: Path
) -> None:
    one, two, solver = tmp_path / "one", tmp_path / "two", solvers[ENDLESS]
    with start(solver, served.here, buffer, one, "--iterations", STEPS_OF_TWO, "--timeout", 1000) as first:
        first.until(lambda: served.run_steps(buffer) > 0, "the box knows how far the run is")
        ranks = suspended(first)
        reached = served.run_steps(buffer)  # told now and then: what the first one shows is ahead of it
        with start(solver, served.there, buffer, two, "--iterations", STEPS_OF_TWO, "--join") as second:
            second.until(lambda: served.num_training(buffer) == 2, "the box shows both at work")
            resume(ranks)
            ends = first.wait(300), second.wait(300)
    assert [ended.return_code for ended in ends] == [0, 0], ends
    results = [result_of(out) for out in (one, two)]
    assert {result["steps"] for result in results} == {STEPS_OF_TWO}
    for name in ("weights_sha256", "test_accuracy", "test_loss"):
        assert results[0][name] == results[1][name], name
    assert results[0]["test_accuracy"] > 0.9
    assert [(result["transport"], result["box"]) for result in results] == [
        ("shm", served.name),
        ("tcp", served.there[1]),
    ]
    assert {result["buffer"] for result in results} == {buffer}
    assert start_of(ends[1]) == reached <= metrics_of(two, "train")[0]["step"]
    assert results[1]["by_worker"][0]["samples"] == 12 * (results[1]["by_worker"][0]["steps"] - start_of(ends[1]))
    assert [test["step"] for test in metrics_of(two, "test")] == [STEPS_OF_TWO]  # before, the first launch tests
    assert "2 workers train at this center now, 1 did before; moving rate 0.45" in ends[0].output
    assert [member["finished"] for member in served.members()] == [True, True]
    assert not unfinished(tmp_path / "one")


def start_of(ended: Ended) -> int:
    """The step from which a launch says that it trains."""
    found = re.search(r"iterations ([\d,]+) to", ended.output)
    assert found, ended.output
    return int(found[1].replace(",", ""))


def test_what_is_refused_before_anything_is_made(
    served: Served, solvers: dict[int, Path], buffer: str, tmp_path: Path
) -> None:
    wrong_key, there_already = tmp_path / "wrong", f"{buffer}-there"
    make_key(wrong_key)
    LocalBox(served.name).create(there_already, BufferShape(8512), Deadline.after(TIMEOUT_S)).close()
    for where, name, more, message in [
        (served.here, buffer, ("--join",), f"--join: box '{served.name}' has no buffer '{buffer}' (there are: "),
        (served.here, there_already, (), f"box '{served.name}' has a buffer '{there_already}' already; give --join"),
        (("--box", "nobody"), buffer, (), "--box nobody: nobody serves box 'nobody' on this host; start it with"),
        ((*served.there[:2], "--key-file", wrong_key), buffer, (), "does not hold the same key"),
    ]:
        ended = run(*arguments_of(solvers[NUM_STEPS], where, name, tmp_path / "out", *more), folder=tmp_path)
        assert ended.return_code == 2, ended.errors
        assert message in ended.error
        assert not (tmp_path / "out").exists()
    LocalBox(served.name).drop(there_already, Deadline.after(TIMEOUT_S))


@pytest.mark.slow
def test_a_buffer_that_nobody_fills_is_not_waited_for_without_end(
    served: Served, solvers: dict[int, Path], buffer: str, tmp_path: Path
) -> None:
    LocalBox(served.name).create(buffer, BufferShape(8512), Deadline.after(TIMEOUT_S)).close()
    flags = ("--join", "--timeout", 5)
    ended = run(*arguments_of(solvers[NUM_STEPS], served.here, buffer, tmp_path / "out", *flags), folder=tmp_path)
    assert ended.return_code == 3
    assert "did not get its first weights; is its first run still starting?" in ended.errors
    assert f"samovar box drop {buffer} --box {served.name}" in ended.errors


@pytest.mark.slow
def test_a_run_goes_on_where_an_earlier_one_ended(
    served: Served, solvers: dict[int, Path], buffer: str, tmp_path: Path
) -> None:
    solver = solvers[NUM_STEPS]
    workers = ("--workers", 2)
    succeed(*arguments_of(solver, served.here, buffer, tmp_path / "one", *workers), folder=tmp_path)
    ended = run(*arguments_of(solver, served.here, buffer, tmp_path / "two", "--join"), folder=tmp_path)
    assert ended.return_code == 2
    assert "has done 150 steps, and this one ends at 150; raise --iterations" in ended.error
    more = (*workers, "--join", "--iterations", 2 * NUM_STEPS)
    succeed(*arguments_of(solver, served.here, buffer, tmp_path / "three", *more), folder=tmp_path)
    one, three = result_of(tmp_path / "one"), result_of(tmp_path / "three")
    assert (one["steps"], three["steps"]) == (NUM_STEPS, 2 * NUM_STEPS)
    assert three["by_worker"][0]["steps"] + three["by_worker"][1]["steps"] - 2 * NUM_STEPS >= NUM_STEPS
    assert three["test_accuracy"] > 0.9


@pytest.mark.slow
def test_a_run_that_cannot_begin_leaves_no_buffer_behind(
    served: Served, solvers: dict[int, Path], buffer: str, tmp_path: Path
) -> None:
    solver, flags = solvers[NUM_STEPS], ("--snapshot", tmp_path / "one" / "snapshots" / f"step_{NUM_STEPS:08}")
    succeed(*arguments_of(solver, served.here, buffer, tmp_path / "one"), folder=tmp_path)
    other, out = f"{buffer}-other", tmp_path / "two"
    ended = run(*arguments_of(solver, served.here, other, out, *flags, "--iterations", 100), folder=tmp_path)
    assert ended.return_code == 2, ended.errors
    assert "it has 150 steps, but the run ends at 100" in ended.error
    assert other not in LocalBox(served.name).names(Deadline.after(TIMEOUT_S))


@pytest.mark.slow
def test_another_net_or_strategy_is_refused_by_name(
    served: Served, solvers: dict[int, Path], digits: Path, buffer: str, tmp_path: Path
) -> None:
    succeed(*arguments_of(solvers[NUM_STEPS], served.here, buffer, tmp_path / "one"), folder=tmp_path)
    wider = write_solver(write_net(tmp_path, digits, hidden=48), NUM_STEPS)
    renamed = write_net(tmp_path, digits)
    renamed.write_text(renamed.read_text().replace('"ip1"', '"hidden"'))
    for solver, more, message in [
        (wider, (), "holds 8,512 elements, but this net has"),
        (write_solver(renamed, NUM_STEPS), (), "holds another net: names or shapes of its parameters differ"),
        (solvers[NUM_STEPS], ("--strategy", "async-sgd"), "is trained with async-easgd, this run has async-sgd; give"),
    ]:
        arguments = arguments_of(solver, served.here, buffer, tmp_path / "two", "--join", *more)
        ended = run(*arguments, folder=tmp_path)
        assert ended.return_code == 2, ended.errors
        assert message in ended.error
    assert [member["is_alive"] for member in served.members()] == [False]


@pytest.mark.slow
@pytest.mark.timeout(900)  # a thousand steps, each of which waits for its group
@pytest.mark.parametrize("strategy", ["shm-easgd", "hogwild-sgd", "async-msgd", "hybrid-easgd"])
def test_strategies_across_launches(
    served: Served, solvers: dict[int, Path], buffer: str, tmp_path: Path, strategy: str
) -> None:
    """The first launch from elsewhere; groups of two workers, and a center's momentum that both have."""
    own = {"async-msgd": ("--center-momentum", 0.8), "hybrid-easgd": ("--group-size", 2)}.get(strategy, ())
    more = ("--strategy", strategy, *own, "--workers", 2, "--iterations", 1000)
    outs = tmp_path / "one", tmp_path / "two"
    with start(solvers[ENDLESS], served.there, buffer, outs[0], *more) as first:
        first.wait_for_step(outs[0], 10)
        ranks = suspended(first)
        with start(solvers[ENDLESS], served.here, buffer, outs[1], *more, "--join") as second:
            second.wait_for_step(outs[1], 1)
            resume(ranks)
            ends = first.wait(400), second.wait(400)
    assert [ended.return_code for ended in ends] == [0, 0], ends
    assert "4 workers train at this center now" in ends[1].output
    results = [result_of(out) for out in outs]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    assert results[0]["test_accuracy"] > 0.9
    assert results[0]["transport"] == ("shm, tcp" if strategy == "hybrid-easgd" else "tcp")


@pytest.mark.slow
def test_ctrl_c_of_a_joiner_and_the_death_of_the_creator_leave_the_others_at_work(
    served: Served, solvers: dict[int, Path], buffer: str, tmp_path: Path
) -> None:
    outs = [tmp_path / name for name in ("one", "two", "three")]
    solver, more = solvers[ENDLESS], ("--join",)
    with start(solver, served.here, buffer, outs[0]) as first:
        first.wait_for_step(outs[0], 20)
        with start(solver, served.there, buffer, outs[1], *more) as second:
            second.wait_for_step(outs[1], 1)
            with start(solver, served.here, buffer, outs[2], *more) as third:
                third.wait_for_step(outs[2], 1)
                stop(second)
                assert result_of(outs[1])["stopped_by"] == "SIGINT"
                assert len(list((outs[1] / "snapshots").glob("step_*"))) == 1
                wait_for_more(third, outs[2])
                ranks = list(first.ranks().values())
                first.process.kill()
                psutil.wait_procs(ranks, TIMEOUT_S)
                assert living(ranks) == []
                third.until(lambda: metrics_of(outs[2], "test"), "the third launch tests now")
                assert [member["is_alive"] for member in served.members()] == [False, False, True]
                ended = stop(third)
    assert re.search("1 worker trains at this center now, [23] did before", ended.output), ended.output
    assert result_of(outs[2])["train_loss"] < 1


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_launch_that_is_killed_elsewhere_counts_no_more(
    served: Served, solvers: dict[int, Path], buffer: str, tmp_path: Path
) -> None:
    """Its connections end with it, and its row stays its own for a while."""
    outs = tmp_path / "one", tmp_path / "two"
    with start(solvers[ENDLESS], served.here, buffer, outs[0]) as first:
        first.wait_for_step(outs[0], 20)
        with start(solvers[ENDLESS], served.there, buffer, outs[1], "--join") as second:
            second.wait_for_step(outs[1], 1)
            assert "joined" in second.output
            ranks = list(second.ranks().values())
            second.process.kill()
            psutil.wait_procs(ranks, TIMEOUT_S)
        first.until(lambda: "1 worker trains at this center now, 2 did before" in first.output, "it is missed")
        states = [(member["is_alive"], member["away"]) for member in served.members()]
        assert states == [(True, False), (False, True)]
        stop(first)


@pytest.mark.slow
@pytest.mark.parametrize("is_far", [False, True])
def test_a_killed_worker_takes_a_seat_again(
    served: Served, solvers: dict[int, Path], buffer: str, tmp_path: Path, is_far: bool
) -> None:
    out, where = tmp_path / "out", served.there if is_far else served.here
    with start(solvers[ENDLESS], where, buffer, out, "--workers", 2) as command:
        command.wait_for_step(out, 30)
        for rank in (1, 0):
            killed = command.wait_for_rank(rank)
            killed.kill()
            command.until(lambda: command.ranks().get(rank, killed).pid != killed.pid, "it is back")  # noqa: B023
            steps = metrics_of(out, "workers")[-1]["steps"][rank]
            command.until(lambda: metrics_of(out, "workers")[-1]["steps"][rank] > steps + 20, "it goes on")  # noqa: B023
        ended = stop(command)
    assert ended.errors.count("it starts again from the center") == 2
    assert result_of(out)["train_loss"] < 1


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("is_far", [False, True])
def test_a_group_of_which_one_is_killed_takes_its_seats_again(
    served: Served, solvers: dict[int, Path], buffer: str, tmp_path: Path, is_far: bool
) -> None:
    """Whole, whichever of it is killed; the other group goes on meanwhile, and no seat is taken twice."""
    out, where = tmp_path / "out", served.there if is_far else served.here
    more = ("--strategy", "hybrid-easgd", "--group-size", 2, "--workers", 4)
    with start(solvers[ENDLESS], where, buffer, out, *more) as command:
        command.wait_for_step(out, 20)
        for killed, group, others in ((3, (2, 3), (0, 1)), (0, (0, 1), (2, 3))):
            before, steps = command.ranks(), steps_of(out)
            before[killed].kill()
            command.until(lambda: all(is_another(command, rank, before) for rank in group), "it is back")  # noqa: B023
            assert [command.ranks()[rank].pid for rank in others] == [before[rank].pid for rank in others]
            wait_for_steps(command, out, others, steps)
            wait_for_steps(command, out, group, steps_of(out))
        members = served.members()
        ended = stop(command)
    assert [member["is_alive"] for member in members] == [True] * 4
    assert ended.errors.count("starts again from the center") == 2, ended.errors
    result = result_of(out)
    assert [worker["restarts"] for worker in result["by_worker"]] == [1] * 4
    assert not any(worker["is_gone"] for worker in result["by_worker"])
    assert result["train_loss"] < 1


def is_another(command: Command, rank: int, before: dict[int, psutil.Process]) -> bool:
    """Whether the rank's process is there, and not the one of `before`."""
    process = command.ranks().get(rank)
    return process is not None and process.pid != before[rank].pid


def steps_of(out: Path) -> list[int]:
    steps: list[int] = metrics_of(out, "workers")[-1]["steps"]
    return steps


def wait_for_steps(command: Command, out: Path, ranks: tuple[int, ...], since: list[int]) -> None:
    """Until each of `ranks` has made 10 steps more than it had `since`."""
    command.until(lambda: all(steps_of(out)[rank] > since[rank] + 10 for rank in ranks), f"ranks {ranks} go on", 120)


@pytest.mark.slow
def test_a_killed_server_is_awaited_by_members_elsewhere_and_not_missed_by_those_here(
    solvers: dict[int, Path], tmp_path: Path
) -> None:
    box, outs = Served(tmp_path), (tmp_path / "one", tmp_path / "two")
    with box.running() as server, start(solvers[ENDLESS], box.here, "narrow", outs[0]) as here:
        here.wait_for_step(outs[0], 20)
        with start(solvers[ENDLESS], box.there, "narrow", outs[1], "--join") as there:
            there.wait_for_step(outs[1], 1)
            server.process.kill()
            server.process.wait()
            wait_for_more(here, outs[0], 50)
            with box.running() as again:
                wait_for_more(there, outs[1], 50)
                wait_for_more(here, outs[0], 50)
                stop(there)
                stop(here)
                again.send(signal.SIGTERM)
                assert again.wait().return_code == 0
    assert result_of(outs[0])["train_loss"] < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "message"),
    [("there", "did not come back in time|cannot be reached within"), ("here", "box '.*' has ended, and this center")],
)
def test_a_server_that_is_ended_ends_those_who_train_there(
    solvers: dict[int, Path], tmp_path: Path, place: str, message: str
) -> None:
    box, out = Served(tmp_path), tmp_path / "out"
    with ExitStack() as stack:
        server = stack.enter_context(box.running())
        where = getattr(box, place)
        worker = stack.enter_context(start(solvers[ENDLESS], where, "narrow", out, "--timeout", 10))
        worker.wait_for_step(out, 20)
        server.send(signal.SIGTERM)
        server.wait()
        ended = worker.wait()
    assert ended.return_code == 3
    assert re.search(message, ended.errors), ended.errors
    assert "Traceback" not in ended.errors
