"""Every benchmark runs in its shortest form: its rank programs start, make steps, and find what they made right."""

import importlib
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.multihost.namespaces import reason_against

SLOW = (
    "box",
    "collectives-network",
    "collectives-pair",
    "collectives-sweep",
    "convergence",
    "convergence-sync",
    "crowded",
    "data",
    "emulated",
    "faults",
    "foreseen",
    "learning",
    "nets",
    "predicted",
    "remote",
    "round-trips",
    "sync",
    "torch",
)
BETWEEN_HOSTS = (
    "elastic-plain",
    "elastic-turns",
    "faults-hosts",
    "streaming",
    "streaming-loss",
    "two-hosts",
    "two-hosts-accuracy",
    "two-hosts-box",
    "two-hosts-gradients",
    "two-hosts-overlap",
    "two-hosts-scaling",
    "two-hosts-train",
)
TIMEOUT_S = 600.0


@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize(
    "name", ["times", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lenet", *SLOW, *BETWEEN_HOSTS))]
)
def test_a_benchmark_runs(repository_root: Path, name: str) -> None:
    if name in BETWEEN_HOSTS and (reason := reason_against()):
        pytest.skip(reason)
    program = repository_root / "benchmarks" / "run.py"
    ended = subprocess.run(
        [sys.executable, program, name, "--short"], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert ended.returncode == 0, ended.stderr
    assert "ratio (median)" in ended.stdout


@pytest.fixture
def ranks(repository_root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository_root / "benchmarks")
    return importlib.import_module("ranks")


def test_a_rank_that_fails_ends_the_benchmark(ranks: ModuleType) -> None:
    """This program imports and ends without a word; the leak check sees that no process is left."""
    with pytest.raises(SystemExit, match=r"ranks\.py failed"), ranks.Ranks("ranks.py", [{}, {}]) as processes:
        processes.answers()


def test_sides_take_turns_in_changing_order_and_warm_up_does_not_count(ranks: ModuleType) -> None:
    order = []

    def turn(name: str, seconds: float) -> object:
        def run() -> tuple[float, float]:
            order.append(name)
            return (1e9, 1e9) if order.count(name) <= ranks.WARM_UP_BLOCKS else (seconds, seconds / 2)

        return ranks.Turn(run, num_samples=10)

    rates = ranks.take_turns({"one": turn("one", 1.0), "other": turn("other", 2.0)}, num_blocks=20)
    assert rates["one"].wall == [10.0] * 20
    assert rates["other"].wall == [5.0] * 20
    assert rates["other"].cpu == [10.0] * 20
    assert len({tuple(order[start : start + 2]) for start in range(0, len(order), 2)}) == 2


@pytest.fixture
def finished(repository_root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository_root / "benchmarks")
    return importlib.import_module("finished")


def test_a_finished_run_is_read_and_not_made_again(finished: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "results" / "study.jsonl"
    tests = [finished.Test(100.0, 0.25, 1.5), finished.Test(200.0, 0.5, 3.0)]
    for seed in (2, 1):
        assert finished.Finished(file).tests("one", seed, {"rate": 0.5}, lambda: tests) == tests
    assert finished.Finished(file).tests("one", 1, {"rate": 0.5}, lambda: pytest.fail("made again")) == tests
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["seed"] for line in lines] == [1, 2]
    assert lines[0]["tests"] == [[100, 0.25, 1.5], [200, 0.5, 3.0]]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_run_by_another_recipe_does_not_count_and_is_replaced(finished: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "study.jsonl"
    finished.Finished(file).tests("one", 1, {"rate": 0.5}, lambda: [finished.Test(100.0, 0.25)])
    now = {"rate": 0.7}
    assert finished.Finished(file, makes_none=True).tests("one", 1, now, lambda: pytest.fail("made")) is None
    again = finished.Finished(file).tests("one", 1, now, lambda: [finished.Test(100.0, 0.75)])
    assert again == [finished.Test(100.0, 0.75)]
    assert [json.loads(line)["settings"] for line in file.read_text().splitlines()] == [now]


def test_settings_are_those_that_the_recipe_and_the_defaults_give(finished: ModuleType) -> None:
    by_recipe = {"sync_period_steps": 1, "moving_rate": 0.225, "worker_rate": 0.5, "rate_factor": 1 + 0.5 / 0.9}
    assert finished.settings_of("async-easgd", 4) == by_recipe
    assert finished.settings_of("async-easgd", 4, with_recipe=False) == {"sync_period_steps": 8, "moving_rate": 0.225}
    assert finished.settings_of("diloco", 4)["rate_factor"] == pytest.approx(1 / 7)


STUDIES = ("", "-200k", "-schedule", "-full", "-time", "-simulated", "-slow", "-torch")


@pytest.mark.parametrize("name", [f"learning{study}" for study in STUDIES])
def test_the_page_and_the_picture_have_the_finished_runs(
    repository_root: Path, finished: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Made again by `benchmarks/run.py NAME --finished`, they are the same."""
    learned, run = (importlib.import_module(module) for module in ("learned", "run"))
    for constant, path in (("PAGE", learned.PAGE), ("CURVES", learned.CURVES)):
        monkeypatch.setattr(learned, constant, Path(shutil.copy(path, tmp_path)))
    assert run.ON_CIFAR10.keys() == {f"learning{study}" for study in STUDIES}
    run.ON_CIFAR10[name](None, False, True)
    assert learned.PAGE.read_text() == (repository_root / "docs/explanation/learning.md").read_text()
    assert learned.CURVES.read_text() == (repository_root / "docs/pictures/learning.json").read_text()


def test_the_picture_ends_at_the_values_of_the_table(repository_root: Path) -> None:
    page, picture = (repository_root / "docs" / name for name in ("explanation/learning.md", "pictures/learning.svg"))
    place = page.read_text().partition("<!-- measured: learning -->")[2].partition("<!-- end -->")[0]
    rows = [line.strip("| ").split(" | ") for line in place.partition("| Samples |")[2].splitlines()[2:] if line]
    assert len(rows) > 10
    for title, *values in rows:
        assert f">{title.strip('`')} {values[-1]}</text>" in picture.read_text()


@pytest.mark.usefixtures("finished")
def test_a_study_without_a_place_on_the_page_is_refused_before_its_first_run() -> None:
    learning = importlib.import_module("learning")
    with pytest.raises(SystemExit, match=r"learning\.md has no place for learning-new"):
        learning.prepared(None, "learning-new")


@pytest.mark.parametrize("fact", ["FIRST_STEP", "SECOND_STEP", "THIRD_STEP", "WHOLE", "LAST_SHARE", "ORIGINAL_SHARE"])
def test_a_published_figure_that_moves_its_simulated_one_is_called_fitted(
    repository_root: Path, monkeypatch: pytest.MonkeyPatch, fact: str
) -> None:
    monkeypatch.syspath_prepend(repository_root / "benchmarks" / "papers")
    sc17 = importlib.import_module("sc17")
    before, _ = sc17.chain()
    monkeypatch.setattr(sc17, fact, 0.97 * getattr(sc17, fact))
    after, _ = sc17.chain()
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old.published != new.published]
    assert moved
    for old, new in moved:
        assert old.is_fitted or new.simulated == pytest.approx(old.simulated)


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize(("is_async", "num_samples"), [(False, 500), (True, 425)])
def test_rank_0_tells_the_samples_of_its_own_step_in_step_and_else_those_of_all(
    is_async: bool, num_samples: int
) -> None:
    learning_sim = importlib.import_module("learning_sim")
    rank = SimpleNamespace(is_async=is_async, accuracy=lambda: 0.5)
    progress = learning_sim.Progress([5, 4, 4, 4])
    assert learning_sim.told(rank, progress, 2.0) == learning_sim.Test(num_samples, 0.5, 2.0)


def test_the_sooner_side_is_compared_on_the_seeds_of_both(finished: ModuleType) -> None:
    learned = importlib.import_module("learned")
    fast, slow = ([finished.Test(100.0, 0.5, seconds), finished.Test(200.0, 0.75, 2 * seconds)] for seconds in (1, 3))
    figure = learned.sooner("fast / slow", {1: fast, 2: fast}, {1: slow, 3: slow}, 0.7, None)
    assert (figure.ours, figure.theirs, figure.ratio, figure.num_pairs) == (2.0, 6.0, 3.0, 1)
    assert learned.seconds_to(0.8, fast) == math.inf
