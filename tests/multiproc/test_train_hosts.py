"""`samovar train --nodes`: launchers on the loopback of one machine are hosts to each other."""

import json
import re
import signal
from pathlib import Path

import pytest

from samovar.core.machine import CalibrationRecord
from samovar.core.plain import as_number
from samovar.data.databases import split_database
from samovar.data.stream import PREFETCHED_BATCHES
from samovar.strategies.catalog import STRATEGIES
from samovar.strategies.config import StrategyConfig
from tests.multihost.train_run import both, started
from tests.multiproc.command import TIMEOUT_S, Command, last_step, result_of, run, succeed
from tests.multiproc.leftovers import living
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.ports import reserved_port
from tests.multiproc.test_trace import Timeline

ENDLESS = 10_000_000
NUM_DIGITS, DIGIT_BYTES = 1_437, 28 * 28  # of the training set


@pytest.fixture
def solver(tmp_path: Path, digits: Path) -> Path:
    return write_solver(write_net(tmp_path, digits), 12)


@pytest.fixture
def endless(tmp_path: Path, digits: Path) -> Path:
    return write_solver(write_net(tmp_path, digits), ENDLESS)


def one_host(solver: Path, folder: Path, workers: int, *more: object) -> str:
    """The weights of the same run on one host."""
    out = folder / "alone"
    succeed(
        *("train", "--solver", solver, "--workers", workers, "--threads-per-worker", 1, "--out", out, *more),
        folder=folder,
    )
    return str(result_of(out)["weights_sha256"])


def solvers_for_shares(folder: Path, digits: Path, num_hosts: int, max_iter: int = 12) -> list[tuple[object, ...]]:
    """Arguments of each host, whose net reads that host's share of the digits."""
    whole = digits / "digits_train_lmdb"
    own: list[tuple[object, ...]] = []
    for number, share in enumerate(split_database(whole, folder / "shares", num_hosts)):
        (home := folder / f"host{number}").mkdir()
        net = write_net(home, digits)
        net.write_text(net.read_text().replace(str(whole), str(share.folder)))
        own.append(("--solver", write_solver(net, max_iter)))
    return own


def test_two_hosts_train_as_one(solver: Path, digits: Path, tmp_path: Path) -> None:
    """Bitwise with the same plan, from a share of the data on each, with one console and one run folder, host 0's."""
    flags, own = ("--collective", "ring", "--shuffle"), solvers_for_shares(tmp_path, digits, 2)
    with started(tmp_path, (1, 1), "--hold-data", *flags, own=own) as run_:
        result = run_.succeed()
        shown = [command.output for command in run_.commands]
    assert result["weights_sha256"] == one_host(solver, tmp_path, 2, *flags)
    assert (result["workers"], result["transport"], result["replicas_equal"]) == (2, "tcp", True)
    assert result["data_bytes_held"] == NUM_DIGITS * DIGIT_BYTES
    assert 0 < result["data_bytes_between_hosts_per_step"] == result["data_bytes_fetched_per_step"]
    assert "step 12/12" in shown[0]
    assert re.fullmatch(r"host 1 of 2: 1 worker here; .* shows the run\n", shown[1]), shown[1]
    assert not list(tmp_path.glob("out-host1/**/result.json"))
    assert sorted(path.name for path in run_.out.glob("rank*.log")) == ["rank0.log"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [("--exact", 4), ("--collective", "ring"), ("--strategy", "local-sgd", "--collective", "ring")]
)
@pytest.mark.parametrize("workers", [(2, 2), (1, 2, 1)])
def test_shares_on_any_hosts_train_as_one(
    solver: Path, digits: Path, tmp_path: Path, workers: tuple[int, ...], flags: tuple[object, ...]
) -> None:
    """The bits of one host that has the whole database."""
    own = solvers_for_shares(tmp_path, digits, len(workers))
    with started(tmp_path, workers, "--hold-data", "--shuffle", *flags, own=own) as run_:
        result = run_.succeed()
    assert result["weights_sha256"] == one_host(solver, tmp_path, 4, "--shuffle", *flags)
    assert result["data_bytes_held"] == NUM_DIGITS * DIGIT_BYTES
    assert 0 < result["data_bytes_between_hosts_per_step"] < result["data_bytes_fetched_per_step"]


@pytest.mark.slow
def test_a_sample_comes_at_most_once_an_epoch_from_another_host(tmp_path: Path, digits: Path) -> None:
    """Two epochs: about half of the samples of each step, and of the few batches that were read ahead."""
    num_steps = 2 * NUM_DIGITS // 12
    own = solvers_for_shares(tmp_path, digits, 2, num_steps)
    with started(tmp_path, (1, 1), "--hold-data", "--shuffle", "--batch-mode", "global", own=own) as run_:
        result = run_.succeed()
    between = 2 * num_steps * result["data_bytes_between_hosts_per_step"] / DIGIT_BYTES
    samples = 12 * (num_steps + PREFETCHED_BATCHES + 1)
    assert 0.4 * samples < between < 0.6 * samples
    assert result["data_bytes_held"] == NUM_DIGITS * DIGIT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "shares", "sentence"),
    [
        ((), (0, 1), "of 2 of a database; train from the shares of all hosts with --hold-data, or give"),
        (("--hold-data", "--exact", 4, "--workers", "auto"), (0, 1), "reads from the files, so give a number"),
        (("--hold-data",), (0, 0), "no worker has share 1 of 2; start a host with each share"),
        (("--hold-data",), (0, None), "other records than host 0; copy the data of host 0 there, or give each host a"),
    ],
    ids=["not held", "swept", "twice", "whole"],
)
def test_shares_that_do_not_fit_are_refused(
    solver: Path,
    tmp_path: Path,
    digits: Path,
    flags: tuple[object, ...],
    shares: tuple[int | None, ...],
    sentence: str,
) -> None:
    of_shares = solvers_for_shares(tmp_path, digits, 2)
    own = [("--solver", solver) if number is None else of_shares[number] for number in shares]
    for code, error in both(tmp_path, *((*each, *flags) for each in own)):
        assert code == 2, error
        assert sentence in error, error


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(2, 2), (1, 1, 1, 1), (3, 1), (1, 2, 1)])
@pytest.mark.parametrize("flags", [("--exact", 4), ("--collective", "halving-doubling", "--overlap", "full")])
def test_any_hosts_train_as_one(
    solver: Path, tmp_path: Path, workers: tuple[int, ...], flags: tuple[object, ...]
) -> None:
    with started(tmp_path, workers, "--solver", solver, *flags) as run_:
        assert run_.succeed()["weights_sha256"] == one_host(solver, tmp_path, 4, *flags)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        *(("--strategy", "sync", *more) for more in ((), ("--compress", "int8"), ("--hold-data",))),
        *(("--strategy", name, "--sync-period", 4) for name in ("local-sgd", "diloco", "slowmo", "sync-easgd")),
    ],
    ids=lambda flags: "-".join(map(str, flags[1:])),
)
def test_every_strategy_in_step(solver: Path, tmp_path: Path, flags: tuple[object, ...]) -> None:
    """On unequal hosts: two runs give the same bits, and a run that was stopped and resumed gives them too."""
    with started(tmp_path, (2, 1), "--solver", solver, *flags) as whole:
        expected = whole.succeed()["weights_sha256"]
    with started(tmp_path, (2, 1), "--solver", solver, *flags, "--iterations", 8, out="first") as first:
        first.succeed()
    more = ("--snapshot", first.out / "snapshots/step_00000008")
    with started(tmp_path, (2, 1), "--solver", solver, *flags, *more, out="second") as second:
        assert second.succeed()["weights_sha256"] == expected


@pytest.mark.slow
def test_a_timeline_has_the_workers_of_all_hosts(solver: Path, tmp_path: Path) -> None:
    """With the clocks of hosts, which are one here, and no part left; the weights are those without a trace."""
    flags = ("--collective", "ring", "--overlap", "backward")
    with started(tmp_path, (2, 1), "--solver", solver, *flags, "--trace", "steps=3-5") as run_:
        assert run_.succeed()["weights_sha256"] == one_host(solver, tmp_path, 3, *flags)
        assert f"trace of steps 3-5: {run_.out}/trace.json.gz" in run_.commands[0].output
    timeline = Timeline(run_.out)
    for rank in range(3):
        assert [span["name"] for span in timeline.spans(rank, "step")] == ["step 3", "step 4", "step 5"]
    assert {(start["pid"], end["pid"]) for start, end in timeline.arrows()} == {
        (one, other) for one in range(3) for other in range(3) if one != other
    }
    offsets_s = timeline.content["otherData"]["clock_offsets_s"]
    assert offsets_s["rank 0"] == offsets_s["rank 1"] == 0.0 < abs(offsets_s["rank 2"]) < 1.0
    assert sorted(path.name for path in run_.out.iterdir() if "trace" in path.name) == ["trace.json.gz"]


@pytest.mark.slow
def test_workers_that_take_turns_have_the_bits_of_one_host(solver: Path, tmp_path: Path) -> None:
    flags = ("--strategy", "round-robin-easgd", "--sync-period", 4)
    with started(tmp_path, (2, 1), "--solver", solver, *flags) as run_:
        assert run_.succeed()["weights_sha256"] == one_host(solver, tmp_path, 3, *flags)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in STRATEGIES if StrategyConfig(name).is_async])
def test_every_strategy_at_a_center(tmp_path: Path, digits: Path, name: str) -> None:
    """Host 0 has the center, and the workers of host 1 reach it over the network; it goes with the run."""
    solver = write_solver(write_net(tmp_path, digits), 60)
    more = ("--group-size", 2) if name.startswith("hybrid") else ()
    with started(tmp_path, (2, 2), "--solver", solver, "--strategy", name, *more) as run_:
        result = run_.succeed()
    assert (result["workers"], result["transport"], len(result["by_worker"])) == (4, "shm, tcp", 4)
    assert all(worker["steps"] > 0 for worker in result["by_worker"])
    assert result["steps"] == 60
    assert result["seconds"] < TIMEOUT_S


@pytest.mark.slow
def test_resume_with_other_hosts(solver: Path, tmp_path: Path) -> None:
    """The snapshot is on host 0 alone, and goes to the others."""
    flags = ("--solver", solver, "--exact", 4)
    with started(tmp_path, (2, 2), *flags, "--iterations", 6, out="first") as first:
        first.succeed()
    with started(tmp_path, (1, 2, 1), *flags, "--snapshot", first.out / "snapshots/step_00000006") as second:
        assert second.succeed()["weights_sha256"] == one_host(solver, tmp_path, 4, "--exact", 4)
        assert "step 12/12" in second.commands[0].output
    pair = move_pair(first.out / "snapshots/step_00000006", tmp_path / "pair")
    with started(tmp_path, (1, 1), *flags, out="third", own=[("--snapshot", pair), ("--snapshot", "absent")]) as third:
        assert third.succeed()["replicas_equal"]
        assert "step 12/12" in third.commands[0].output


def test_a_run_without_a_step_leaves_the_snapshot_that_it_resumed(solver: Path, tmp_path: Path) -> None:
    """Other hosts have a copy of it, and save or do not save with host 0."""
    with started(tmp_path, (1, 1), "--solver", solver, "--strategy", "sync-easgd") as first:
        first.succeed()
    before = {path: path.read_bytes() for path in first.out.glob("snapshots/*/*")}
    assert {"rank_0.safetensors", "rank_1.safetensors"} <= {path.name for path in before}
    with started(tmp_path, (1, 1), "--solver", solver, "--strategy", "sync", "--snapshot", "auto") as second:
        second.succeed()
    assert {path: path.read_bytes() for path in second.out.glob("snapshots/*/*")} == before


def move_pair(snapshot: Path, folder: Path) -> Path:
    """The solverstate of a snapshot, in a folder where its caffemodel is too."""
    folder.mkdir()
    for path in (*snapshot.glob("*.caffemodel"), *snapshot.glob("*.solverstate")):
        path.rename(folder / path.name)
    (state,) = folder.glob("*.solverstate")
    return state


@pytest.mark.parametrize(
    ("host", "number", "exit_code"),
    [
        (1, signal.SIGTERM, 75),
        pytest.param(0, signal.SIGTERM, 75, marks=pytest.mark.slow),
        pytest.param(1, signal.SIGINT, 0, marks=pytest.mark.slow),
    ],
)
def test_a_signal_on_any_host_stops_all(
    endless: Path, tmp_path: Path, host: int, number: signal.Signals, exit_code: int
) -> None:
    with started(tmp_path, (1, 1), "--solver", endless) as run_:
        run_.commands[0].wait_for_step(run_.out, 3)
        run_.commands[host].send(number)
        ended = run_.wait()
    assert [each.return_code for each in ended] == [exit_code] * 2, ended
    result = result_of(run_.out)
    assert result["stopped_by"] == number.name
    assert result["steps"] == last_step(run_.out)
    assert [path.name for path in run_.out.glob("snapshots/step_*")] == [f"step_{result['steps']:08}"]


@pytest.mark.slow
@pytest.mark.parametrize("host", [0, 1])
def test_a_second_signal_ends_all_at_once(endless: Path, tmp_path: Path, host: int) -> None:
    with started(tmp_path, (1, 2), "--solver", endless) as run_:
        run_.commands[0].wait_for_step(run_.out, 3)
        ranks = [rank for command in run_.commands for rank in command.ranks().values()]
        for rank in ranks:
            rank.suspend()  # so that none stops after a step
        run_.commands[host].when_handled(signal.SIGINT)
        run_.commands[host].send(signal.SIGINT)
        ended = run_.wait()
    assert [each.return_code for each in ended] == [130, 130], ended
    assert all("ended at once by a second signal (SIGINT)" in each.errors for each in ended)
    assert living(ranks) == []


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_killed_rank_is_named_on_every_host(endless: Path, tmp_path: Path, victim: int) -> None:
    with started(tmp_path, (1, 2), "--solver", endless) as run_:
        run_.commands[0].wait_for_step(run_.out, 3)
        ranks = run_.commands[0].ranks() | run_.commands[1].ranks()
        ranks[victim].kill()
        ended = run_.wait()
    assert [each.return_code for each in ended] == [3, 3], ended
    for each in ended:
        assert re.match(rf"rank {victim} was killed by signal 9 \(SIGKILL\)", each.error), each.error
    assert living(list(ranks.values())) == []


@pytest.mark.slow
@pytest.mark.parametrize("host", [0, 1])
def test_a_killed_launcher_is_named(endless: Path, tmp_path: Path, host: int) -> None:
    with started(tmp_path, (1, 2), "--solver", endless) as run_:
        run_.commands[0].wait_for_step(run_.out, 3)
        ranks = run_.commands[0].ranks() | run_.commands[1].ranks()
        run_.commands[host].process.kill()
        ended = run_.commands[1 - host].wait()
    assert ended.return_code == 3, ended
    assert re.search(rf"host {host}, .*#{host} \(rank.* is lost", ended.error), ended.error
    assert living(list(ranks.values())) == []


@pytest.mark.slow
def test_doctor_measures_the_links_and_auto_stands_on_its_figures(solver: Path, tmp_path: Path) -> None:
    saved = tmp_path / "calibration.json"
    with reserved_port() as port:
        place = ("--nodes", 2, "--master-addr", "127.0.0.1", "--master-port", port)
        with Command("doctor", *place, "--node-rank", 1, folder=tmp_path) as other:
            found = succeed("doctor", *place, "--node-rank", 0, "--save", saved, "--json", folder=tmp_path)
            assert other.wait().return_code == 0
    (link,) = json.loads(found.output)["links"]
    assert abs(link["clock_ahead_s"]) < 1.0  # it is this machine's own
    figures = CalibrationRecord.load(saved).transports["tcp"]
    assert figures.sleeping_latency_s == link["figures"]["sleeping_latency_s"]
    assert figures.processing_bytes_per_s == as_number(link["figures"]["processing_bytes_per_s"])
    with started(tmp_path, (1, 1), "--solver", solver, "--calibration", saved, "--overlap", "backward") as run_:
        run_.succeed()


def test_a_host_that_does_not_come_is_named(solver: Path, tmp_path: Path) -> None:
    with reserved_port() as port:
        place = ("--nodes", 3, "--master-addr", "127.0.0.1", "--master-port", port, "--timeout", 1)
        ended = run("train", "--solver", solver, "--node-rank", 0, *place, folder=tmp_path)
        assert ended.return_code == 3
        assert f"hosts 1, 2 did not come to 127.0.0.1:{port} within 1.0 s; start the same command" in ended.error
        ended = run("train", "--solver", solver, "--node-rank", 1, *place, folder=tmp_path)
        assert ended.return_code == 3
        assert re.search(rf"host 1 .*: host 0 at 127.0.0.1:{port} cannot be reached within 1.0 s", ended.error)
    assert not (tmp_path / "runs").exists()


def test_each_host_times_the_layers_and_host_0_shows_all(solver: Path, tmp_path: Path) -> None:
    with reserved_port() as port:
        place = ("--nodes", 2, "--master-addr", "127.0.0.1", "--master-port", port, "--threads-per-worker", 1)
        words = ("time", "--solver", solver, "--iterations", 2, *place)
        with Command(*words, "--node-rank", 1, folder=tmp_path) as other:
            times = json.loads(succeed(*words, "--node-rank", 0, "--json", folder=tmp_path).output)
            assert (ended := other.wait()).return_code == 0, ended
    assert [each["rank"] for each in times] == [0, 1]
    assert len({each["host"] for each in times}) == 2
    assert all(each["iterations"] == 2 and each["forward_ms"] > 0 for each in times)


@pytest.mark.slow
def test_each_host_chooses_its_own_workers(solver: Path, tmp_path: Path) -> None:
    """By --workers auto, of which the last one counts; with slices they train as one worker does."""
    with started(tmp_path, (1, 1), "--solver", solver, "--exact", 4, own=[("--workers", "auto")] * 2) as run_:
        result = run_.succeed()
        assert all("--workers auto: some steps with each of" in command.output for command in run_.commands)
    assert 2 <= result["workers"] <= 4
    assert len(result["sweep"]) > 1
    assert result["weights_sha256"] == one_host(solver, tmp_path, 1, "--exact", 4)
