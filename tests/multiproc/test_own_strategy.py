"""A strategy in a user's own file, by every door: `samovar train`, `samovar.replicate`, and what is wrong with it."""

import json
import shutil
from pathlib import Path

import pytest

from tests.multiproc.command import result_of, run, succeed
from tests.multiproc.nets import write_net, write_solver

NUM_STEPS = 12
SCRIPT = """
import hashlib, sys, torch, samovar
from growing import GrowingSgd
torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
rule = GrowingSgd if sys.argv[1] == "class" else sys.argv[1]
replica = samovar.replicate(model, torch.optim.SGD(model.parameters(), 0.1), rule, growth=2.0, sync_period=1)
for step in range(9):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + replica.rank))
    model.zero_grad()
    replica.backward(model(x).pow(2).sum())
    replica.step()
own = hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest()
replica.finish()
common = hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest()
sys.stdout.write(f"{replica.config.name} {replica.config['growth']} {own} {common}\\n")
"""


@pytest.fixture(scope="module")
def example(repository_root: Path) -> Path:
    return repository_root / "examples/strategy/growing.py"


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    return write_solver(write_net(tmp_path_factory.mktemp("nets"), digits), NUM_STEPS, test_initialization="false")


def train(solver: Path, folder: Path, *more: object) -> str:
    """The hash of the weights in the end."""
    succeed("train", "--solver", solver, "--threads-per-worker", 1, *more, folder=folder)
    result = result_of(folder / str(more[-1]))
    assert result["strategy"] == ("growing-sgd" if ":" in str(more) else "local-sgd")
    return result["weights_sha256"]


def test_two_workers_train_with_it_and_the_bits_come_out_twice(solver: Path, example: Path, tmp_path: Path) -> None:
    """From the file wherever it lies, and as a module of the working folder."""
    shutil.copy(example, tmp_path)
    flags = ("--workers", 2, "--growth", 2, "--sync-period", 3)
    once = train(solver, tmp_path, *flags, "--strategy", f"{example}:GrowingSgd", "--out", "once")
    again = train(solver, tmp_path, *flags, "--strategy=growing:GrowingSgd", "--out", "again")
    assert once == again
    strategy = json.loads((tmp_path / "once/config.json").read_text())["strategy"]
    assert (strategy["name"], strategy["own"]) == ("growing-sgd", {"growth": 2.0})
    assert strategy["source"] == f"{example}:GrowingSgd"
    plain = train(
        solver,
        tmp_path,
        "--workers",
        2,
        "--strategy",
        "local-sgd",
        "--sync-period",
        3,
        "--recipe",
        "none",
        "--out",
        "plain",
    )
    assert plain != once


@pytest.mark.parametrize(
    "rule", [pytest.param("class", marks=pytest.mark.slow), "growing:GrowingSgd", "growing.py:GrowingSgd"]
)
def test_a_loop_of_ones_own_trains_with_it_and_the_bits_come_out_twice(
    example: Path, tmp_path: Path, rule: str
) -> None:
    shutil.copy(example, tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    shown = []
    for _ in range(1 if ":" in rule else 2):
        ended = succeed("run", "-n", 2, "script.py", rule, folder=tmp_path, forks_scripts=True)
        shown.append(sorted(line.split("growing-sgd ")[1].split() for line in ended.output.splitlines()))
    assert shown[0] == shown[-1]
    assert [growth for growth, *_ in shown[0]] == ["2.0", "2.0"]
    assert len({own for _, own, _ in shown[0]}) == 2, "two steps after the last exchange ranks differ"
    assert len({common for *_, common in shown[0]}) == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--strategy", "nowhere:Rule"), "--strategy nowhere:Rule: there is no module 'nowhere'"),
        (("--strategy", "growing.py:Missing"), "--strategy growing.py:Missing: growing.py has no Missing"),
        (("--strategy", "growing:GrowingSgd", "--growth", "0.5"), "--growth: got 0.5; give more than 1"),
        (("--strategy", "growing:GrowingSgd", "--moving-rate", "0.5"), "--moving-rate is not a setting of"),
    ],
)
def test_what_is_wrong_with_it_is_said_before_anything_starts(
    solver: Path, example: Path, tmp_path: Path, flags: tuple[str, ...], sentence: str
) -> None:
    shutil.copy(example, tmp_path)
    ended = run("train", "--solver", solver, *flags, folder=tmp_path)
    assert ended.return_code == 2
    assert sentence in ended.error
    assert not (tmp_path / "runs").exists()


def test_its_settings_are_flags_of_caffe_s_command_too(solver: Path, example: Path, tmp_path: Path) -> None:
    shutil.copy(example, tmp_path)
    words = ("caffe", "train", "-solver", solver, "-workers", 2, "-strategy", "growing.py:GrowingSgd")
    ended = run(*words, "-growth", "1", folder=tmp_path)
    assert (ended.return_code, "--growth: got 1; give more than 1" in ended.error) == (2, True)


def test_a_recorded_run_does_not_make_us_import_what_it_names(solver: Path, tmp_path: Path) -> None:
    """The folder may be anybody's: only what the command line itself names is run."""
    flags = ("train", "--solver", solver, "--workers", 1, "--threads-per-worker", 1, "--strategy", "async-easgd")
    succeed(*flags, "--record", "--out", "recorded", folder=tmp_path)
    path = tmp_path / "recorded/config.json"
    config = json.loads(path.read_text())
    config["strategy"] |= {"name": "evil", "source": f"{tmp_path}/evil.py:Evil"}
    path.write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('run').touch()\n")
    ended = run(*flags, "--replay", "recorded", folder=tmp_path)
    assert ended.return_code == 2
    assert not (tmp_path / "run").exists()
    config["strategy"] |= {"name": f"{tmp_path}/evil.py:Evil"}
    path.write_text(json.dumps(config))
    assert run(*flags, "--replay", "recorded", folder=tmp_path).return_code == 2
    assert not (tmp_path / "run").exists()
