"""Elastic jobs with real processes: a worker is killed, others come, and the rest train on."""

import ast
import itertools
import json
import os
import random
import re
import signal
import statistics
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.multiproc.command import Command
from tests.multiproc.elastic_program import BATCH, NUM_SAMPLES, PERIOD
from tests.multiproc.script_run import run_impatiently, run_script, start_script, write_script

PROGRAM = Path(__file__).with_name("elastic_program.py")
STRATEGIES = ("local-sgd", "diloco", "sync-easgd")
NUM_STEPS, PAUSE_S = 400, 0.005


@pytest.fixture
def job(tmp_path: Path) -> str:
    """A name that no other test has."""
    return re.sub("[^a-z0-9]", "-", f"{tmp_path.name}-{os.getpid()}")


def told(folder: Path, name: str) -> list[Any]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob(f"{name}-*.json"))]


def started(folder: Path, job: str, num_steps: int, *flags: object, strategy: str, doomed: object = "") -> Command:
    arguments = ("run", *flags, PROGRAM, folder, strategy, num_steps, *([doomed] if doomed != "" else []))
    return Command(*arguments, folder=folder, is_forked=True)


@pytest.mark.parametrize(
    "strategy", ["sync-easgd", *(pytest.param(one, marks=pytest.mark.slow) for one in STRATEGIES[:2])]
)
def test_one_is_killed_in_mid_round_and_one_comes(tmp_path: Path, job: str, strategy: str) -> None:
    """With at least three workers the rest waits for the one that comes, so it is the same at every run."""
    num_steps, begins = 60, ("-n", 3, "--elastic", job, "--min-workers", 3)
    with started(tmp_path, job, num_steps, *begins, strategy=strategy, doomed=0) as launcher:
        launcher.until(lambda: told(tmp_path, "doomed"), "a worker is in its third round")
        doomed = next(tmp_path.glob("doomed-*.json"))
        os.kill(int(doomed.stem.partition("-")[2]), signal.SIGKILL)
        with started(tmp_path, job, num_steps, "-n", 1, "--join", job, strategy=strategy) as joining:
            ended, joined = launcher.wait(), joining.wait()
    assert (ended.return_code, joined.return_code) == (0, 0), ended.errors + joined.errors
    assert "was killed by signal 9 (SIGKILL)" in ended.errors
    workers = told(tmp_path, "ended")
    assert [worker["step"] for worker in workers] == 3 * [num_steps]
    assert all(worker["weights"] == workers[0]["weights"] for worker in workers)
    assert sorted(one["step"] for one in told(tmp_path, "began")) == [0, 0, 0, 3 * PERIOD]
    assert_data([*workers, *told(tmp_path, "doomed")])


LEAVES = """
import torch, samovar
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

def refused(call, *arguments, **settings):
    try:
        call(*arguments, **settings)
    except samovar.SamovarError as error:
        return str(error)

class Stream(IterableDataset):
    def __iter__(self):
        return iter(())

torch.manual_seed(rank)
model = torch.nn.Linear(4, 2)
model.scale = torch.nn.Parameter(torch.rand(2), requires_grad=False)  # which nothing trains
optimizer = torch.optim.SGD([model.weight, model.bias], lr=0.1)
replicate = samovar.replicate
refusals = [refused(replicate, model, optimizer, name) for name in ("sync", "shm-easgd")]
for given in ({"overlap": "step"}, {"compress": "int8"}):
    refusals.append(refused(replicate, model, optimizer, "sync-easgd", **given))
refusals.append(refused(replicate, model, optimizer, "diloco", fragments=2))
refusals.append(refused(replicate, model, optimizer, "diloco", timeout_s=0))
replica = replicate(model, optimizer, "diloco", sync_period_steps=4)
refusals += [refused(replicate, torch.nn.Linear(2, 2), optimizer, "diloco")]
refusals += [refused(replica.mean, 1.0), refused(replica.load_state_dict, {})]
refusals += [refused(replica.shard, DataLoader(Stream()), on_demand=demand) for demand in (False, True)]
world_sizes = []
for step in range(12):
    world_sizes.append(replica.world_size)
    optimizer.zero_grad()
    replica.backward(model(torch.ones(3, 4)).square().mean())
    replica.step()
    with replica.busy():
        pass
    if rank == 1 and step == 5:
        replica.leave()
        break
else:
    replica.finish()
center = [p.tolist() for p in (model.weight, model.bias)]
tell("end", repr({"refusals": refusals, "world_sizes": world_sizes, "center": center, "step": replica.step_count,
                  "scale": model.scale.tolist()}))
"""


def test_one_leaves_and_the_other_continues(tmp_path: Path, job: str) -> None:
    """It leaves in the middle of the second round, which then counts for both."""
    ended = run_script(tmp_path, LEAVES, 2, "--elastic", job, forks_scripts=True)
    assert ended.return_code == 0, ended.errors
    stayed, left = (ast.literal_eval((tmp_path / f"end-{rank}").read_text()) for rank in range(2))
    assert stayed["world_sizes"] == [2] * 8 + [1] * 4
    assert (stayed["step"], left["step"]) == (12, 6)
    assert stayed["center"] != left["center"]
    assert stayed["scale"] == left["scale"]
    words = (
        *("sync: with --elastic", "shm-easgd: with --elastic"),
        *("overlap step", "compress int8"),
        "leave fragments",
        "timeout_s is 0",
        "one replica",
        "mean()",
        "load_state_dict: rank, world_size",
        *("stream", "on_demand: workers of an elastic job"),
    )
    for sentence, word in zip(stayed["refusals"], words, strict=True):
        assert word in sentence, (sentence, word)


SAVES = """
import torch, samovar
from torch.utils.data import DataLoader, TensorDataset

path, life = Path("state.safetensors"), sys.argv[1]
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.5)
replica = samovar.replicate(model, optimizer, "diloco", sync_period_steps=4)
extra = replica.load(path) if life in ("second", "other") or (life == "third" and rank == 0) else None
data, size = TensorDataset(torch.arange(48.0).reshape(48, 1)), 3 if life == "other" else 2
shard, seen = replica.shard(DataLoader(data, size, shuffle=True)), []
told = {"first": replica.step_count, "extra": extra, "seen": seen, "began": [p.tolist() for p in model.parameters()]}
for epoch in range(shard.epoch, 1):
    for (x,) in shard:
        seen.append(x.flatten().tolist() if life == "second" or replica.step_count < 8 else [])
        optimizer.zero_grad()
        replica.backward(model(x).square().mean())
        replica.step()
        if life == "first" and replica.step_count == 10:
            if replica.is_first:
                replica.save(path, {"rate": 0.5})
            break
if life == "second":
    replica.finish()
else:
    with replica.evaluating():
        told["common"] = [p.tolist() for p in model.parameters()]
tell(life, repr(told))
"""


def test_a_job_continues_where_another_was_saved(tmp_path: Path, job: str) -> None:
    """With the weights of the last exchange and the samples that are left, though the save was two steps later."""
    lives = []
    for life in ("first", "second"):
        flags = ("--elastic", job, "--metrics", "figures")
        ended = run_script(tmp_path, SAVES, 2, *flags, arguments=(life,), forks_scripts=True)
        assert ended.return_code == 0, ended.errors
        lives.append([ast.literal_eval((tmp_path / f"{life}-{rank}").read_text()) for rank in range(2)])
    first, second = lives
    assert [one["first"] for one in (*first, *second)] == [0, 0, 8, 8]
    assert [one["extra"] for one in second] == 2 * [{"rate": 0.5}]
    assert all(one["began"] == first[0]["common"] for one in second)
    samples = Counter(sample for one in (*first, *second) for batch in one["seen"] for sample in batch)
    assert (set(samples.values()), len(samples)) == ({1}, 48)
    assert len(list((tmp_path / "figures").glob("*/metrics.jsonl"))) == 4
    ended = run_script(tmp_path, SAVES, 1, "--elastic", job, arguments=("other",), forks_scripts=True)
    assert "this epoch began with batches of another order or size than here" in ended.errors


@pytest.mark.slow
def test_a_worker_that_began_with_another_state_is_refused(tmp_path: Path, job: str) -> None:
    assert run_script(tmp_path, SAVES, 2, "--elastic", job, arguments=("first",)).return_code == 0
    ended = run_script(tmp_path, SAVES, 2, "--elastic", job, arguments=("third",))
    assert ended.return_code == 0, ended.errors
    assert "it began with another checkpoint than the first worker" in ended.errors


ADDRESS = ("--master-addr", "localhost", "--master-port", 29500)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--min-workers", 2), "together with --elastic"),
        (("--elastic", "one", "--join", "two"), "give one of them"),
        (("--elastic", "a name"), "letters, digits"),
        (("--elastic", "one", "--max-workers", 1), "--max-workers 1"),
        (("--elastic", "one", "--nodes", 2, "--node-rank", 0, *ADDRESS), "--nodes"),
        (("--join", "one", "--node-rank", 1), "--node-rank"),
        (("--elastic", "one", "--transport", "gloo"), "leave --transport out"),
        (("--elastic", "one", *ADDRESS[:3], 70_000, "--key-file", "job.pem"), "--master-port 70000"),
    ],
)
def test_flags_that_do_not_fit_together(tmp_path: Path, flags: tuple[object, ...], words: str) -> None:
    ended = run_script(tmp_path, "", 2, *flags)
    assert ended.return_code == 2
    assert words in ended.errors


def assert_data(workers: list[Any]) -> None:
    """No sample is seen twice in an epoch; lost is what the dead worker would have taken in the rest of its round."""
    counts: dict[int, Counter[int]] = {}
    for worker in workers:
        for epoch, _, numbers in worker["seen"]:
            counts.setdefault(epoch, Counter()).update(numbers)
    assert all(set(count.values()) == {1} for count in counts.values())
    assert len(counts[0]) == NUM_SAMPLES - 2 * BATCH
    last = max(counts)
    assert all(len(counts[epoch]) == NUM_SAMPLES for epoch in counts if 0 < epoch < last)


def assert_no_round_is_left_out(folder: Path) -> None:
    """Each worker was there at one exchange after the other."""
    for worker in lines(folder):
        borders = [line[0] for line in worker if line[0] % PERIOD == 0]
        assert not borders or borders == [*range(int(borders[0]), int(borders[-1]) + 1, PERIOD)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_of_four_one_is_killed_and_two_come_at_any_moment(
    tmp_path: Path, job: str, seed: int, undisturbed: dict[str, float]
) -> None:
    """A worker that comes waits for at most two rounds, and no round is left out.

    The final loss is that of a run without all this, to 1 %.
    """
    draw, strategy = random.Random(seed), STRATEGIES[seed % 3]
    comes = sorted(draw.randrange(NUM_STEPS - 16 * PERIOD) for _ in range(2))  # on a busy machine it takes a second
    events = [(draw.randrange(NUM_STEPS - 4 * PERIOD), "kill"), *((at, f"come-{n}") for n, at in enumerate(comes))]
    with ExitStack() as stack:
        launcher = stack.enter_context(founders(tmp_path, job, strategy))
        joining = [stack.enter_context(joiner(tmp_path, job, strategy, number)) for number in range(2)]
        launcher.until(lambda: len(told(tmp_path, "there")) == 6, "all have started")
        (tmp_path / "begin").touch()
        for at, what in sorted(events):
            launcher.until(partial(is_at, tmp_path, at), f"step {at}")
            act(tmp_path, what, draw.randrange(4))
        ended = [launcher.wait(), *(one.wait() for one in joining)]
    assert [one.return_code for one in ended] == [0, 0, 0], [one.errors for one in ended]
    workers = told(tmp_path, "ended")
    assert len(workers) == 5
    assert all(worker["weights"] == workers[0]["weights"] for worker in workers)
    for one in ended[1:]:
        waited = re.search(r"came to elastic job '.*' at step [0-9,]+ after (\d+) round", one.errors)
        assert waited, one.errors
        assert int(waited[1]) <= 2
    assert_no_round_is_left_out(tmp_path)
    loss, wanted = workers[0]["loss"], undisturbed[strategy]
    print(f"{strategy}: {events}: loss {loss:.5f} against {wanted:.5f}, longest round {longest_round(tmp_path):.1f}")
    assert loss == pytest.approx(wanted, rel=0.01)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Final losses of four workers that stay."""
    losses = {}
    for strategy in STRATEGIES:
        folder = tmp_path_factory.mktemp("undisturbed")
        (folder / "begin").touch()
        with founders(folder, f"{folder.name}-{os.getpid()}", strategy) as launcher:
            assert launcher.wait().return_code == 0
        losses[strategy] = told(folder, "ended")[0]["loss"]
    return losses


def founders(folder: Path, job: str, strategy: str) -> Command:
    arguments = ("run", "-n", 4, "--elastic", job, PROGRAM, folder, strategy, NUM_STEPS)
    return Command(*arguments, folder=folder, prefix=("env", "OMP_NUM_THREADS=1", f"TEST_PAUSE_S={PAUSE_S}"))


def joiner(folder: Path, job: str, strategy: str, number: int) -> Command:
    arguments = ("run", "-n", 1, "--join", job, PROGRAM, folder, strategy, NUM_STEPS)
    prefix = ("env", "OMP_NUM_THREADS=1", f"TEST_PAUSE_S={PAUSE_S}", f"TEST_NAME={number}")
    return Command(*arguments, folder=folder, prefix=prefix)


def act(folder: Path, what: str, victim: int) -> None:
    if what != "kill":
        (folder / what).touch()
        return
    there = {json.loads(file.read_text())["worker"]: file for file in folder.glob("there-*.json")}
    os.kill(int(there[f"rank {victim}"].stem.partition("-")[2]), signal.SIGKILL)


def lines(folder: Path) -> list[list[list[float]]]:
    """Of each worker, for each of its steps: the step, the number of workers and the time."""
    files = sorted(folder.glob("steps-*"))
    return [[[float(word) for word in line.split()] for line in file.read_text().splitlines()] for file in files]


def is_at(folder: Path, step: int) -> bool:
    """Whether a worker has made so many steps."""
    return any(line[0] >= step for worker in lines(folder) for line in worker[-1:])


def longest_round(folder: Path) -> float:
    """The longest time between two exchanges of a worker, as a multiple of the median."""
    lengths = [
        second[2] - first[2]
        for worker in lines(folder)
        for first, second in itertools.pairwise(line for line in worker if line[0] % PERIOD == 0)
    ]
    return max(lengths) / statistics.median(lengths)


GOES_FIRST = """
import torch, samovar
begins = "SAMOVAR_ELASTIC_JOINS" not in os.environ
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
replica = samovar.replicate(model, optimizer, "local-sgd", sync_period_steps=2)
while begins or not Path("go").exists():
    optimizer.zero_grad()
    replica.backward(model(torch.ones(3, 4)).square().mean())
    replica.step()
    time.sleep(0.01)
    if begins:
        Path("there").touch()
        if replica.world_size == 2:
            replica.leave()
            print("a line without an end", end="")
            break
else:
    replica.finish()
"""


def test_those_that_joined_train_on_when_the_first_command_has_no_worker_left(tmp_path: Path, job: str) -> None:
    script = write_script(tmp_path, GOES_FIRST)
    with Command("run", "-n", 1, "--elastic", job, script, folder=tmp_path, is_forked=True) as first:
        first.until((tmp_path / "there").exists, "the job has begun")
        with Command("run", "-n", 1, "--join", job, script, folder=tmp_path, is_forked=True) as second:
            first.until(lambda: "it waits for those that joined the job" in first.errors, "the first command waits")
            assert "a line without an end" in first.output
            (tmp_path / "go").touch()
            ended, joined = first.wait(), second.wait()
    assert (ended.return_code, joined.return_code) == (0, 0), ended.errors + joined.errors


STOPS = """
import torch, samovar
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
replica = samovar.replicate(model, optimizer, "local-sgd", sync_period_steps=2)
print("begins")
while replica.step_count < 8:
    optimizer.zero_grad()
    replica.backward(model(torch.ones(3, 4)).square().mean())
    replica.step()
    if rank == 1 and replica.step_count == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
replica.finish()
print("finished")
"""


def test_a_worker_that_is_stopped_is_ended_and_named(tmp_path: Path, job: str) -> None:
    ended = run_impatiently(tmp_path, "-n", 2, "--elastic", job, "--all-lines", write_script(tmp_path, STOPS))
    assert ended.return_code == 0, ended.errors
    assert re.search(r"rank 1 \(on .*\) was stopped by a signal for too long, and was ended after", ended.errors)
    assert sorted(ended.output.splitlines()) == ["[0] begins", "[0] finished", "[1] begins"]


SAVES_AT_A_SIGNAL = """
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
tell("there")
while not seen:
    time.sleep(0.01)
if rank:
    sys.exit(1)
deadline = time.monotonic() + 2.5
while time.monotonic() < deadline:
    time.sleep(0.01)
tell("done")
"""


def test_a_signal_that_asks_nobody_to_end_does_not_end_the_others_later(tmp_path: Path, job: str) -> None:
    with start_script(tmp_path, SAVES_AT_A_SIGNAL, 2, "--elastic", job, "--grace", 1) as command:
        command.until(lambda: all((tmp_path / f"there-{rank}").exists() for rank in range(2)), "both are there")
        command.send(signal.SIGUSR1)
        command.wait()
    assert (tmp_path / "done-0").exists()
