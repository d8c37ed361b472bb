"""The figures of a run, and where they go."""

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.report.metrics import MetricsWriter, read_metrics
from samovar.report.sinks import (
    GuardedSink,
    Sink,
    close_all,
    finite_scalars,
    metrics_choice,
    named_sinks,
    open_sinks,
    scalars,
)
from samovar.report.steps import Advice, RunFigures, StepDone, StepTimes, last_to_arrive

ADVICE = Advice("another disk", "larger batches", "more cores")
OWN = """
import samovar
class Mine(samovar.Sink):
    def write(self, step, kind, values):
        print(step, kind, values["loss"])
"""


class Kept(Sink):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str, Mapping[str, object]]] = []
        self.run: Mapping[str, object] = {}
        self.is_closed = False

    def begin(self, run: Mapping[str, object]) -> None:
        self.run = run

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        self.lines.append((step, kind, values))

    def close(self) -> None:
        self.is_closed = True


class Broken(Kept):
    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        super().write(step, kind, values)
        raise OSError("no network")


def done(step: int, **given: float) -> StepDone:
    times = StepTimes(data_s=0.1, forward_s=0.2, backward_s=0.3, exchange_s=0.4)
    last_rank = int(given["last_rank"]) if "last_rank" in given else None
    return StepDone(step, 2.0 / step, 64, 1.0, times, last_rank, given.get("late_s", 0.0))


@pytest.mark.parametrize(
    ("waits_s", "late"),
    [((0.4, 0.1, 0.5), (1, 0.35)), ((0.2,), (None, 0.0)), ((0.2, np.nan), (None, 0.0)), ((0.0, 0.0), (0, 0.0))],
)
def test_the_rank_that_waits_least_has_come_last(waits_s: tuple[float, ...], late: tuple[int | None, float]) -> None:
    assert last_to_arrive(np.array(waits_s)) == pytest.approx(late)


def test_figures_are_those_of_all_steps_but_the_first() -> None:
    run = RunFigures(ADVICE)
    for step in range(1, 12):
        run.step_done(done(step, last_rank=1, late_s=0.05), 0.1)
    figures = run.figures()
    assert (figures.steps, figures.samples, figures.samples_per_second) == (11, 704, 64.0)
    assert figures.seconds == pytest.approx({"data": 1, "forward": 2, "backward": 3, "exchange": 4, "update": 0})
    assert (figures.waiting_share, figures.slow_rank, figures.slow_share) == pytest.approx((0.4, 1, 0.05))
    assert "communication-bound; try larger batches" in str(figures)
    assert "64.0 samples/s" in str(figures)


def test_figures_before_the_first_step_are_empty() -> None:
    figures = RunFigures(ADVICE).figures()
    assert (figures.steps, figures.samples_per_second, figures.waiting_share, figures.verdict) == (0, 0.0, 0.0, "")
    assert math.isnan(figures.loss)


def test_each_step_and_test_comes_to_every_sink(tmp_path: Path) -> None:
    kept = Kept()
    with MetricsWriter(tmp_path / "metrics.jsonl") as file:
        run = RunFigures(ADVICE, [file, kept])
        run.step_done(done(1), 0.1)
        run.step_done(done(2, last_rank=3, late_s=0.25), 0.05)
        run.write(2, "test", {"accuracy": 0.5})
    expected = [{"step": step, "kind": kind, **values} for step, kind, values in kept.lines]
    assert read_metrics(tmp_path / "metrics.jsonl") == expected
    assert expected[1]["last_rank"] == 3
    assert expected[1]["samples_per_second"] == 64.0
    assert [line["kind"] for line in expected] == ["train", "train", "test"]


def test_a_rank_that_is_late_is_named_with_the_step() -> None:
    run = RunFigures(ADVICE)
    said = [run.step_done(done(step, last_rank=2, late_s=0.3), 0.1) for step in range(1, 12)]
    (sentence,) = [one for one in said if one]
    assert "rank 2 is slower than the others" in sentence
    assert sentence.startswith("step 9: ")


def test_a_sink_that_fails_is_left_out_with_one_warning() -> None:
    broken, kept, warnings = Broken(), Kept(), []
    run = RunFigures(ADVICE, [GuardedSink(broken, "metrics Broken", warnings.append), kept])
    for step in (1, 2, 3):
        run.step_done(done(step), 0.1)
    assert (len(broken.lines), len(kept.lines)) == (1, 3)
    (warning,) = warnings
    assert warning.startswith("metrics Broken gets no more figures, because it failed with OSError: no network")


def test_numbers_have_the_names_of_their_kind() -> None:
    values = {"loss": [1.0, 2.0], "steps": 3, "is_gone": [True], "name": "text", "bad": math.nan, "none": None}
    found = dict(scalars("workers", values))
    assert math.isnan(found.pop("workers/bad"))
    assert found == {"workers/loss/0": 1.0, "workers/loss/1": 2.0, "workers/steps": 3.0, "workers/is_gone/0": 1.0}
    assert "workers/bad" not in finite_scalars("workers", values)


def test_places_are_read_from_text_and_objects(tmp_path: Path) -> None:
    kept = Kept()
    choice = metrics_choice([tmp_path, kept, "tensorboard:events"], "metrics")
    assert (choice.folder, choice.sinks) == (tmp_path, (kept, "tensorboard:events"))
    choice = metrics_choice("runs/x,tensorboard", "metrics")
    assert (choice.folder, choice.sinks) == (Path("runs/x"), ("tensorboard",))
    assert metrics_choice(None, "metrics") == metrics_choice([], "metrics")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["a", "b"], "got 'a, b'; give a folder, tensorboard"),
        ("", "give a folder, tensorboard"),
        ([3], "got '3'; give a folder"),
        ("tensorboard", "give its folder, as tensorboard:FOLDER, or a folder for the run"),
        ("nowhere.py:Mine", "no such file: nowhere.py; give MODULE:NAME"),
        ("json:dumps", "is not a sink; give a subclass of samovar.Sink"),
    ],
)
def test_a_place_that_cannot_be_used_is_refused(given: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        metrics_choice(given, "metrics")


def test_a_run_with_a_folder_of_its_own_takes_only_sinks() -> None:
    assert named_sinks("tensorboard", "--metrics") == ("tensorboard",)
    with pytest.raises(InputError, match=r"--metrics: got 'runs/x'; give tensorboard\[:FOLDER\]"):
        named_sinks("runs/x", "--metrics")


def test_a_missing_package_is_named_with_its_extra() -> None:
    program = (
        "import sys; sys.modules['wandb'] = None\n"
        "from samovar.report.sinks import metrics_choice\n"
        "from samovar.core.errors import InputError\n"
        "try: metrics_choice('wandb', 'metrics')\n"
        "except InputError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "the Python module wandb is not installed; run `pip install 'samovar[wandb]'`\n"


def test_a_sink_of_ones_own_is_found_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    choice = metrics_choice(f"{tmp_path}/mine.py:Mine", "metrics")
    sinks = open_sinks(choice, None, {}, "metrics", pytest.fail)
    sinks[0].write(3, "train", {"loss": 0.5})
    close_all(sinks)
    assert capsys.readouterr().out == "3 train 0.5\n"


def test_a_sink_that_cannot_begin_ends_the_run_and_closes_the_others() -> None:
    class Late(Kept):
        def begin(self, run: Mapping[str, object]) -> None:
            super().begin(run)
            raise RuntimeError("no key")

    kept = Kept()
    with pytest.raises(InputError, match="metrics Late: RuntimeError: no key; correct it, or leave it out"):
        open_sinks(metrics_choice([kept, Late()], "metrics"), None, {"lr": 0.1}, "metrics", pytest.fail)
    assert kept.is_closed
    assert json.dumps(kept.run) == '{"lr": 0.1}'
