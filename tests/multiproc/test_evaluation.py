"""`samovar test` measures what the training run measured at its end."""

import json
import re
from pathlib import Path

import pytest

from tests.multiproc.command import metrics_of, result_of, succeed
from tests.multiproc.nets import write_net, write_solver

NUM_STEPS = 40
FIGURE = re.compile(r"(accuracy|loss) ([0-9.e+-]+)")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    return write_net(tmp_path_factory.mktemp("net"), digits)


@pytest.fixture(scope="module")
def trained(net: Path) -> Path:
    """The folder of a run of two workers."""
    solver = write_solver(net, NUM_STEPS)
    flags = ("--workers", 2, "--threads-per-worker", 1, "--out", "out")
    succeed("train", "--solver", solver, *flags, folder=net.parent)
    return net.parent / "out"


def measured(out: Path) -> dict[str, float]:
    (*_, last) = metrics_of(out, "test")
    return {name: last[name] for name in ("accuracy", "loss")}


@pytest.mark.parametrize("workers", [2, *(pytest.param(workers, marks=pytest.mark.slow) for workers in (1, 4))])
def test_the_command_shows_what_training_measured(net: Path, trained: Path, workers: int) -> None:
    (model,) = trained.glob("snapshots/*/*.caffemodel")
    flags = ("--iterations", 6, "--workers", workers, "--threads-per-worker", 1)
    ended = succeed("test", "--model", net, "--weights", model, *flags, folder=net.parent)
    shown = {name: float(value) for name, value in FIGURE.findall(ended.output)}
    assert shown == {name: float(f"{value:.4f}") for name, value in measured(trained).items()}
    assert shown["accuracy"] > 0.3
    assert not list(net.parent.glob("runs/*"))


def test_one_worker_measures_the_same_bits_as_two(net: Path, trained: Path) -> None:
    """From the last snapshot of two workers, one worker has nothing to train and tests."""
    (snapshot,) = trained.glob("snapshots/step_*")
    flags = ("--workers", 1, "--threads-per-worker", 1, "--snapshot", snapshot, "--out", "alone")
    succeed("train", "--solver", write_solver(net, NUM_STEPS), *flags, folder=net.parent)
    alone = net.parent / "alone"
    assert measured(alone) == measured(trained)
    assert result_of(alone)["weights_sha256"] == result_of(trained)["weights_sha256"]
    assert metrics_of(alone, "train") == []


def test_a_net_that_reads_nothing_says_so(trained: Path, tmp_path: Path) -> None:
    (model,) = trained.glob("snapshots/*/*.caffemodel")
    net = tmp_path / "deploy.prototxt"
    net.write_text(
        'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 32 } } }\n'
        'layer { name: "ip2" type: "InnerProduct" bottom: "data" top: "ip2" inner_product_param { num_output: 10 } }\n'
    )
    flags = ("--iterations", 1, "--threads-per-worker", 1)
    ended = succeed("test", "--model", net, "--weights", model, *flags, folder=tmp_path)
    assert "'data' are zeros, so these outputs measure nothing" in ended.output + ended.errors
    assert "at step" not in ended.output


def named_as_in_googlenet(net: Path, phase: str) -> Path:
    """The net with an auxiliary loss of weight 0.3; its losses are in `phase` alone."""
    text, _, _ = net.read_text().partition('layer { name: "accuracy"')
    loss = 'type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label"'
    path = net.with_name(f"googlenet{len(phase)}.prototxt")
    path.write_text(
        f'{text} layer {{ name: "1" {loss} top: "loss1/loss1" loss_weight: 0.3 {phase} }}\n'
        f'layer {{ name: "3" {loss} top: "loss3/loss3" {phase} }}\n'
        'layer { name: "top" type: "Accuracy" bottom: "ip2" bottom: "label" top: "loss1/top-1" '
        "include { phase: TEST } }\n"
    )
    return path


def test_the_test_loss_is_the_sum_that_the_net_learns(net: Path) -> None:
    auxiliary = named_as_in_googlenet(net, "")
    flags = ("--workers", 1, "--threads-per-worker", 1)
    succeed("train", "--solver", write_solver(auxiliary, 2), *flags, "--out", "two", folder=net.parent)
    (*_, last) = metrics_of(net.parent / "two", "test")
    loss = 0.3 * last["loss1/loss1"] + last["loss3/loss3"]
    assert result_of(net.parent / "two")["test_loss"] == last["test_loss"] == pytest.approx(loss, rel=1e-6)

    (model,) = net.parent.glob("two/snapshots/*/*.caffemodel")
    words = ("test", "--model", auxiliary, "--weights", model, "--iterations", 6, *flags)
    tested = json.loads(succeed(*words, "--json", folder=net.parent).output)
    assert tested["loss"] == last["test_loss"]
    assert tested["loss_weights"] == {"loss1/loss1": pytest.approx(0.3), "loss3/loss3": 1.0}
    assert f"all losses {loss:.4f}" in succeed(*words, folder=net.parent).output


def test_a_test_net_without_losses_has_no_test_loss(net: Path) -> None:
    without = named_as_in_googlenet(net, "include { phase: TRAIN }")
    flags = ("--workers", 1, "--threads-per-worker", 1, "--out", "no_loss")
    ended = succeed("train", "--solver", write_solver(without, 2), *flags, folder=net.parent)
    assert result_of(net.parent / "no_loss")["test_loss"] is None
    assert "test loss" not in ended.output
    (*_, last) = metrics_of(net.parent / "no_loss", "test")
    assert "test_loss" not in last
    (model,) = net.parent.glob("no_loss/snapshots/*/*.caffemodel")
    words = ("--model", without, "--weights", model, "--iterations", 1, *flags[:-2], "--json")
    tested = json.loads(succeed("test", *words, folder=net.parent).output)
    assert (tested["loss"], tested["loss_weights"]) == (None, {})
