"""The LeNet examples: their sizes, and that a step on them lowers the loss."""

from pathlib import Path

import pytest
import torch

from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.net import build_net
from samovar.frontends.caffe.solver import load_solver


@pytest.mark.parametrize(
    ("name", "max_iter", "test_batches", "test_batch_size"), [("digits", 600, 6, 60), ("mnist", 10_000, 100, 100)]
)
def test_solver_and_net(
    repository_root: Path, name: str, max_iter: int, test_batches: int, test_batch_size: int
) -> None:
    solver = load_solver(repository_root / f"examples/lenet/{name}_solver.prototxt")
    definition = load_net(solver.net.path)

    assert (solver.max_iter, solver.lr_policy) == (max_iter, "inv")
    assert solver.warnings == definition.warnings == ()
    (test,) = solver.test_nets
    assert (test.source.path, test.num_batches) == (solver.net.path, test_batches)
    (test_data,) = [spec for spec in definition.in_phase("TEST") if spec.type == "Data"]
    assert test_data.message.data_param.batch_size == test_batch_size


def test_lenet(repository_root: Path) -> None:
    definition = load_net(repository_root / "examples/lenet/digits_train_test.prototxt")
    net = build_net(definition, "TRAIN", {"data": (4, 1, 28, 28), "label": (4,)}, seed=1)
    batch = {
        "data": torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(1)),
        "label": torch.arange(4.0),
    }

    assert sum(info.parameter.numel() for info in net.parameter_infos) == 431_080
    assert [info.lr_mult for info in net.parameter_infos] == [1, 2] * 4
    first = net(batch)
    first.loss.backward()
    with torch.no_grad():
        for info in net.parameter_infos:
            assert info.parameter.grad is not None
            info.parameter.sub_(0.01 * info.lr_mult * info.parameter.grad)
    assert net(batch).scalars["loss"] < first.scalars["loss"]
