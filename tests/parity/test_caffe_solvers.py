"""Every solver and learning-rate policy against what BVLC Caffe recorded: losses, weights, histories, resumed runs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samovar.formats.caffe.solverstate import read_solverstate
from tests.parity.solver_runs import SolverRun

pytestmark = pytest.mark.golden

LOSS_TOLERANCE = 1e-5  # relative
DIVIDING = ("adagrad", "rmsprop", "adadelta", "adam")  # by small roots: their first weights move 1e-6 by themselves
DEPARTED = 1e-6  # relative
SHOWN_WITHIN = 5  # steps that a maximum's other choice may need to show in the loss
NUM_RUNS = 23
NUM_STEPS = 30


def result_of(folder: Path, name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / name / "result.json").read_text())
    return result


def run_names(folder: Path) -> list[str]:
    names = sorted(path.name.removesuffix(".solver.prototxt") for path in folder.glob("*.solver.prototxt"))
    assert len(names) == NUM_RUNS
    return names


def weight_tolerance(name: str, steps: int) -> float:
    return 1e-6 if steps < 3 and not name.startswith(DIVIDING) else 1e-5


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """More do not help a net this small."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(params=range(NUM_RUNS))
def name(request: pytest.FixtureRequest, golden_folder: Path) -> str:
    return run_names(golden_folder / "lenet")[request.param]


def comparable_steps(losses: list[float], recorded: list[float], run: SolverRun, first_step: int) -> int:
    """Up to which step a run must be as recorded: to its end, or to where a maximum was decided by rounding.

    Caffe's maximum may then be the other one, and what follows is another run. The loss shows it at the next step.
    """
    away = np.flatnonzero(np.abs(np.array(losses) / recorded - 1) > DEPARTED)
    if not away.size:
        return NUM_STEPS
    departure = first_step + int(away[0])
    ties = [step for step in run.tied_steps if departure - SHOWN_WITHIN <= step < departure]
    assert ties, f"the loss of step {departure} is another one, and no maximum before it was near a tie"
    return min(ties)


def test_losses_rates_weights_and_histories(name: str, golden_folder: Path) -> None:
    folder = golden_folder / "lenet"
    result = result_of(folder, name)
    losses: list[float] = []
    checks: list[tuple[int, list[str]]] = []
    with SolverRun(folder, name, folder / "init.caffemodel", bucket_size_bytes=4096) as run:
        for first, last in ((0, 1), (1, 2), (2, 15), (15, NUM_STEPS)):
            samples_a_step = run.batch_size * run.caffe.iter_size
            losses += run.train(range(first, last), first * samples_a_step)
            checks.append((last, wrong_after(run, folder / name, last)))
        steps = comparable_steps(losses, result["raw_loss"], run, 0)
        assert steps >= 2
        assert not [wrong for last, found in checks for wrong in found if last <= steps]
        policy = run.solver.config.policy
    np.testing.assert_allclose([policy.rate(step) for step in range(NUM_STEPS)], result["lr"], rtol=1e-5)
    np.testing.assert_allclose(losses[: steps + 1], result["raw_loss"][: steps + 1], rtol=LOSS_TOLERANCE)


def wrong_after(run: SolverRun, folder: Path, steps_done: int) -> list[str]:
    """What differs from the recorded weights and state after so many steps."""
    wrong = []
    for recorded in folder.glob(f"snap_iter_{steps_done}.caffemodel*"):
        distance = run.distance_of_weights(recorded)
        if not distance <= weight_tolerance(folder.name, steps_done):
            wrong.append(f"{recorded.name}: {distance}")
    for recorded in folder.glob(f"snap_iter_{steps_done}.solverstate*"):
        state = read_solverstate(recorded)
        assert (state.iteration, state.current_step) == (steps_done, run.solver.config.policy.drops(steps_done - 1))
        for index, (ours, theirs) in enumerate(zip(run.histories(), state.history, strict=True)):
            if not np.abs(ours - theirs).max() <= 1e-5 * max(1e-3, np.abs(theirs).max()):
                wrong.append(f"{recorded.name}: history {index}")
    return wrong


def test_caffes_states_go_on_to_the_recorded_curve(golden_folder: Path) -> None:
    """As Caffe, which reads the records from the first one again after a resume."""
    folder = golden_folder / "lenet"
    resumable = [name for name in run_names(folder) if "resumed" in result_of(folder, name)]
    assert {name.partition("_")[0] for name in resumable} == {
        "sgd",
        "nesterov",
        "adagrad",
        "rmsprop",
        "adadelta",
        "adam",
    }
    for name in resumable:
        result = result_of(folder, name)["resumed"]
        (state,) = folder.glob(f"{name}/snap_iter_15.solverstate*")
        (weights,) = folder.glob(f"{name}/snap_iter_15.caffemodel*")
        (expected,) = folder.glob(f"{name}/resumed_iter_30.caffemodel*")
        with SolverRun(folder, name, weights) as run:
            run.resume(state)
            losses = run.train(range(15, NUM_STEPS), first_sample=0)
            distance = run.distance_of_weights(expected)
        # Six digits are too few to tell from the losses after which tie a run is another one.
        steps = min(run.tied_steps) if distance > 1e-5 and run.tied_steps else NUM_STEPS
        assert distance <= 1e-5 or steps > 16, name
        np.testing.assert_allclose(losses[: steps - 14], result["printed_loss"][: steps - 14], rtol=LOSS_TOLERANCE)


# quick: in step 3 a value before ReLU is 2e-7 from zero; the losses are others from step 6 on.
CIFAR_STEPS = {"quick": 3, "full": 20, "bn_crop": 20}


@pytest.mark.parametrize("name", CIFAR_STEPS)
def test_runs_on_cifar(name: str, golden_folder: Path) -> None:
    folder, steps = golden_folder / "cifar", CIFAR_STEPS[name]
    losses: list[float] = []
    with SolverRun(folder, name, folder / f"{name}.init.caffemodel", finds_ties=False) as run:
        for first, last in ((0, 1), (1, 2), (2, 10), (10, 20)):
            if last > max(2, steps):
                break
            losses += run.train(range(first, last), first * run.batch_size)
            tolerance = 1e-4 if name == "bn_crop" else weight_tolerance(name, last)
            assert run.distance_of_weights(folder / name / f"snap_iter_{last}.caffemodel") <= tolerance, last
    np.testing.assert_allclose(losses, result_of(folder, name)["raw_loss"][: len(losses)], rtol=LOSS_TOLERANCE)
