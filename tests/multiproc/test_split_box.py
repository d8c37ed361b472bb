"""A center cut over several boxes: launches and replicas that train there, and when one box's server is killed."""

import random
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from samovar.box.buffers import BufferShape
from samovar.box.endpoints import Endpoints, create_shards, parse_endpoints, take_shards
from samovar.box.joining import buffer_names, parse_endpoint, read_buffer
from samovar.core.clock import Deadline
from tests.multiproc.command import metrics_of, result_of, run, succeed
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.ports import reserved_port
from tests.multiproc.test_box_kill import BUFFER, REMOTE, SIZE, WAIT_S, Server, wait_for_updates, working
from tests.multiproc.test_replicate_box import final, script, started
from tests.multiproc.test_train_box import (
    Arguments,
    arguments_of,
    resume,
    start,
    stop,
    suspended,
    wait_for_more,
)

NUM_STEPS, ENDLESS = 60, 10_000_000
NAME = "narrow"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    """Three boxes that hold one key."""
    yield from started_servers(tmp_path, 3)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Server]]:
    """Two boxes that hold one key."""
    yield from started_servers(tmp_path, 2)


def started_servers(folder: Path, count: int) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(count)]
        servers = [stack.enter_context(Server(f"test-{uuid.uuid4().hex}", folder / "key", port)) for port in ports]
        yield servers
        for server in servers:
            server.end()


def here(*servers: Server) -> Arguments:
    return ("--box", ",".join(server.box for server in servers))


def there(*servers: Server) -> Arguments:
    boxes = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return ("--box", boxes, "--key-file", servers[0].key)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    return write_net(tmp_path_factory.mktemp("nets"), digits)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("strategy", ["shm-easgd", "async-easgd", "async-msgd"])
def test_one_worker_gets_the_bits_of_one_box(servers: list[Server], net: Path, tmp_path: Path, strategy: str) -> None:
    """In one box of this host, and cut over two that are reached over the network."""
    solver, results = write_solver(net, NUM_STEPS, display=1), []
    for number, where in enumerate((here(servers[0]), there(*servers[1:]))):
        out = tmp_path / str(number)
        succeed(*arguments_of(solver, where, NAME, out, "--strategy", strategy), folder=tmp_path)
        results.append(result_of(out))
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    assert results[0]["test_loss"] == results[1]["test_loss"]
    listed = succeed("box", "list", *there(*servers[1:]), folder=tmp_path).output
    assert "narrow: part 1 of 2, 4,2" in listed
    assert "narrow: part 2 of 2, 4,2" in listed
    assert listed.count("finished") == 2
    again = run(*arguments_of(solver, here(servers[2]), NAME, tmp_path / "2", "--join"), folder=tmp_path)
    assert again.return_code == 2
    assert f"buffer 'narrow' of box '{servers[2].box}' is part 2 of 2 of a center, and no whole center" in again.error
    succeed("box", "drop", NAME, *there(*servers[1:]), folder=tmp_path)
    assert [names(server) for server in servers] == [[NAME], [], []]


def names(server: Server) -> list[str]:
    return buffer_names(parse_endpoint(server.box, None), "test", Deadline.after(WAIT_S))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_launches_here_and_elsewhere_end_with_one_center(servers: list[Server], net: Path, tmp_path: Path) -> None:
    """Three boxes; the second launch reaches them by their addresses, and a third goes on from what they hold."""
    solver, outs = write_solver(net, ENDLESS, test_initialization="false", display=1), (tmp_path / "0", tmp_path / "1")
    end = ("--iterations", 1000)
    with start(solver, here(*servers), NAME, outs[0], *end) as first:
        first.wait_for_step(outs[0], 10)
        ranks = suspended(first)
        with start(solver, there(*servers), NAME, outs[1], *end, "--join", "--workers", 2) as second:
            second.wait_for_step(outs[1], 1)
            resume(ranks)
            ends = first.wait(150), second.wait(150)
    assert [ended.return_code for ended in ends] == [0, 0], ends
    results = [result_of(out) for out in outs]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    assert results[0]["test_accuracy"] > 0.9
    more = ("--iterations", 1100, "--join")
    succeed(*arguments_of(solver, here(*servers), NAME, tmp_path / "2", *more), folder=tmp_path)
    assert result_of(tmp_path / "2")["steps"] == 1100


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("which", [0, 1])
def test_a_run_waits_for_a_killed_server(servers: list[Server], net: Path, tmp_path: Path, which: int) -> None:
    solver, out = write_solver(net, ENDLESS, test_initialization="false", display=1), tmp_path / "out"
    with start(solver, there(*servers[:2]), NAME, out, "--workers", 2) as launch:
        launch.wait_for_step(out, 20)
        servers[which].kill()
        servers[which].restart()
        wait_for_more(launch, out, 50)
        stop(launch)
    result = result_of(out)
    assert result["train_loss"] < 1
    assert result["stopped_by"] == "SIGINT"
    assert "step_" in str(next((out / "snapshots").glob("step_*")))
    assert metrics_of(out, "workers")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_a_server_killed_while_members_work(pair: list[Server], seed: int) -> None:
    """Whichever it is: every update counts once in every part, and those who have both boxes here notice nothing."""
    rng = random.Random(seed)
    nears, fars = parse_endpoints(",".join(server.box for server in pair), None), far_places(pair)
    shape = BufferShape(SIZE, max_members=4, chunk_elements=1000)
    assert create_shards(nears, BUFFER, shape, "test", Deadline.after(WAIT_S)) is None
    seats = [take_shards(nears, BUFFER, "test", Deadline.after(WAIT_S))]
    seats += [take_shards(fars, BUFFER, "test", Deadline.after(WAIT_S)) for _ in REMOTE]
    with working(seats) as workers:
        for _ in range(3):
            wait_for_updates(workers[1:], rng.randrange(1, 10))
            time.sleep(rng.uniform(0, 0.01))  # not a wait for anything: any time will do
            killed = rng.choice(pair)
            killed.kill()
            wait_for_updates(workers[:1], 50)
            killed.restart()
            wait_for_updates(workers, 5)
    assert [worker.error for worker in workers] == [None] * len(workers)
    for place in nears.boxes:
        _, arrays = read_buffer(place, BUFFER, "test", Deadline.after(WAIT_S))
        assert (arrays["center"] == sum(worker.number * worker.num_updates for worker in workers)).all()
        assert (arrays["versions"] == sum(worker.num_updates for worker in workers)).all()


def far_places(servers: list[Server]) -> Endpoints:
    return parse_endpoints(",".join(f"127.0.0.1:{server.port}" for server in servers), servers[0].key)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_parts_are_saved_and_filled_each_by_itself(servers: list[Server], net: Path, tmp_path: Path) -> None:
    """A box whose part is lost gets it back from its file, and training goes on."""
    solver = write_solver(net, NUM_STEPS)
    succeed(*arguments_of(solver, here(*servers[:2]), NAME, tmp_path / "0"), folder=tmp_path)
    files = [tmp_path / f"part{number}.safetensors" for number in range(2)]
    for server, file in zip(servers[:2], files, strict=True):
        succeed("box", "snapshot", NAME, "--out", file, "--box", server.box, folder=tmp_path)
    succeed("box", "drop", NAME, "--box", servers[1].box, folder=tmp_path)
    for server, file in zip(servers[1:], files[::-1], strict=True):  # the first part comes to another box
        succeed("box", "load", NAME, file, "--box", server.box, folder=tmp_path)
    more = ("--join", "--iterations", 2 * NUM_STEPS)
    ended = run(*arguments_of(solver, here(*servers[1:]), NAME, tmp_path / "1", *more), folder=tmp_path)
    assert ended.return_code == 2
    assert "is part 2 of 2 of a center, and not part 1 of 2" in ended.error
    for first, out in ((servers[0], "2"), (servers[2], "3")):
        succeed(*arguments_of(solver, here(first, servers[1]), NAME, tmp_path / out, *more), folder=tmp_path)
        more = ("--join", "--iterations", 3 * NUM_STEPS)
    assert result_of(tmp_path / "3")["steps"] == 3 * NUM_STEPS


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_training_goes_on_in_another_number_of_boxes(servers: list[Server], net: Path, tmp_path: Path) -> None:
    """From two boxes to three, by what both hold, and to one of these, by the files of the parts."""
    solver, pair, wholes = write_solver(net, NUM_STEPS), here(*servers[:2]), tmp_path / "whole.safetensors"
    steps, more = iter((2 * NUM_STEPS, 3 * NUM_STEPS)), ("--join", "--iterations")
    succeed(*arguments_of(solver, pair, NAME, tmp_path / "0"), folder=tmp_path)
    succeed("box", "snapshot", NAME, "--out", wholes, *pair, folder=tmp_path)
    files = [tmp_path / f"part{number}.safetensors" for number in range(2)]
    for server, file in zip(servers[:2], files, strict=True):
        succeed("box", "snapshot", NAME, "--out", file, *here(server), folder=tmp_path)
    for given, boxes in (([wholes], there(*servers)), (files, here(servers[2]))):
        name = f"again-{len(given)}"
        loaded = succeed("box", "load", name, *given, *boxes, folder=tmp_path).output
        assert f"{name}: made and filled with 8,512 elements of {given[0]}" in loaded
        succeed(*arguments_of(solver, boxes, name, tmp_path / name, *more, next(steps)), folder=tmp_path)
        assert start_of_run(tmp_path / name) == NUM_STEPS
    listed = succeed("box", "list", *there(*servers), folder=tmp_path).output
    assert listed.count("again-1: part ") == 3
    assert "again-2: 8,512 elements" in listed


def start_of_run(out: Path) -> int:
    return int(metrics_of(out, "train")[0]["step"]) - 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_replicas_share_a_center_in_two_boxes(servers: list[Server]) -> None:
    """A second job joins the first one's parts over the network; sums of whole numbers are exact."""
    near = ",".join(server.box for server in servers[:2])
    far = ",".join(f"127.0.0.1:{server.port}" for server in servers[:2])
    with started(*script(near, "-", "", 1, 40)) as first:
        twice = subprocess.run(script(near, "-", "", 1, 40), capture_output=True, text=True, check=False)
        assert f"box '{servers[1].box}' has a buffer 'sum' already; join=True trains on it" in twice.stderr
        with started(*script(far, servers[0].key, "join", 100, 30)) as second:
            assert final(second) == final(first) == [3040.0] * 8
