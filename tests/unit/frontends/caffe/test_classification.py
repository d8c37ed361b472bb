"""SoftmaxWithLoss and Accuracy against definitions in float64."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from samovar.core.errors import InputError
from samovar.frontends.caffe.net import CaffeNet

RunLayer = Callable[..., dict[str, np.ndarray]]

NORMALIZATIONS = ["", "normalization: FULL", "normalization: VALID", "normalization: BATCH_SIZE", "normalization: NONE"]
NORMALIZATIONS += ["normalize: true", "normalize: false", "normalize: false normalization: FULL"]


def divisor(setting: str, num_labels: int, num_valid: int, batch_size: int) -> int:
    if "FULL" in setting:
        return num_labels
    if "BATCH_SIZE" in setting or setting == "normalize: false":
        return batch_size
    return 1 if "NONE" in setting else max(1, num_valid)


@pytest.mark.parametrize("ignore_label", [None, 1, -1])
@pytest.mark.parametrize("setting", NORMALIZATIONS)
@pytest.mark.parametrize("shape", [(6, 5), (3, 5, 2, 2)])
def test_softmax_loss(
    run_layer: RunLayer, rng: np.random.Generator, shape: tuple[int, ...], setting: str, ignore_label: int | None
) -> None:
    x = rng.standard_normal(shape).astype(np.float32)
    labels = rng.integers(0, 5, (shape[0], *shape[2:])).astype(np.float32)
    if ignore_label is not None:
        labels.flat[0] = ignore_label
    ignore = "" if ignore_label is None else f"ignore_label: {ignore_label}"

    got = run_layer(
        f'type: "SoftmaxWithLoss" top: "loss" loss_param {{ {setting} {ignore} }}',
        {"data": x, "label": labels},
        np.float32(1),
    )

    rows = np.moveaxis(x.astype(np.float64), 1, -1).reshape(-1, 5)
    flat = labels.astype(int).ravel()
    valid = flat != ignore_label if ignore_label is not None else np.ones(len(flat), bool)
    probabilities = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    count = divisor(setting, len(flat), int(valid.sum()), shape[0])
    loss = -np.log(probabilities[valid, flat[valid]]).sum() / count
    gradient = (probabilities - np.eye(5)[np.where(valid, flat, 0)]) * valid[:, None] / count
    np.testing.assert_allclose(got["loss"], loss, rtol=1e-5)
    expected = np.moveaxis(gradient.reshape(shape[0], *shape[2:], 5), -1, 1)
    np.testing.assert_allclose(got["d data"], expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "HingeLoss"])
def test_whole_numbers_as_scores_are_those_of_floats(net_of: Callable[..., CaffeNet], kind: str) -> None:
    """In Caffe each blob is of floats."""
    text = f"""layer {{ name: "label" type: "Input" top: "label" input_param {{ shape {{ dim: 3 }} }} }}
    layer {{ name: "r" type: "Reshape" bottom: "label" top: "r" reshape_param {{ shape {{ dim: 3 dim: 1 }} }} }}
    layer {{ name: "c" type: "Concat" bottom: "r" bottom: "r" top: "scores" }}
    layer {{ name: "loss" type: "{kind}" bottom: "scores" bottom: "label" top: "loss" }}"""
    net = net_of(text)
    labels = torch.tensor([0, 1, 1])
    losses = [net({"label": each}).scalars["loss"] for each in (labels, labels.float())]
    assert losses[0] == losses[1]


def test_the_logarithm_stops_and_the_gradient_does_not(run_layer: RunLayer) -> None:
    got = run_layer(
        'type: "SoftmaxWithLoss" top: "loss"',
        {"data": np.array([[0.0, 200.0]], np.float32), "label": np.zeros(1, np.float32)},
        np.float32(1),
    )

    np.testing.assert_allclose(got["loss"], -np.log(np.finfo(np.float32).tiny), rtol=1e-6)
    np.testing.assert_allclose(got["d data"], [[-1.0, 1.0]])


def test_every_label_ignored(run_layer: RunLayer) -> None:
    got = run_layer(
        'type: "SoftmaxWithLoss" top: "loss" loss_param { ignore_label: 2 }',
        {"data": np.ones((3, 4), np.float32), "label": np.full(3, 2.0, np.float32)},
        np.float32(1),
    )

    assert got["loss"] == 0
    assert not got["d data"].any()


@pytest.mark.parametrize("bad", [5, -1])
@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "Accuracy"])
def test_labels_that_are_no_class(run_layer: RunLayer, kind: str, bad: int) -> None:
    labels = np.array([0, bad, 4], np.int64)

    with pytest.raises(InputError, match=rf"layer 'x': labels are {labels.min()} to {labels.max()}, but .* 5 classes"):
        run_layer(f'type: "{kind}" top: "y"', {"data": np.zeros((3, 5), np.float32), "label": labels})


@pytest.mark.parametrize("top_k", [1, 2, 5])
@pytest.mark.parametrize("ignore_label", [None, 2])
@pytest.mark.parametrize("shape", [(20, 5), (4, 5, 3, 2)])
def test_accuracy(
    run_layer: RunLayer, rng: np.random.Generator, shape: tuple[int, ...], ignore_label: int | None, top_k: int
) -> None:
    x = rng.integers(0, 4, shape).astype(np.float32)  # with ties
    labels = rng.integers(0, 5, (shape[0], *shape[2:])).astype(np.float32)
    ignore = "" if ignore_label is None else f"ignore_label: {ignore_label}"

    got = run_layer(
        f'type: "Accuracy" top: "y" top: "classes" accuracy_param {{ top_k: {top_k} {ignore} }}',
        {"data": x, "label": labels},
        phase="TEST",
    )

    rows = np.moveaxis(x, 1, -1).reshape(-1, 5)
    pairs = [(row, int(label)) for row, label in zip(rows, labels.ravel(), strict=True) if label != ignore_label]
    right = [sum(row[c] >= row[label] for c in range(5) if c != label) < top_k for row, label in pairs]
    np.testing.assert_allclose(got["y"], np.mean(right), rtol=1e-6)
    for c in range(5):
        of_class = [r for r, (_, label) in zip(right, pairs, strict=True) if label == c]
        np.testing.assert_allclose(got["classes"][c], np.mean(of_class) if of_class else 0, rtol=1e-6)


def test_a_score_that_is_no_number_is_never_right(run_layer: RunLayer) -> None:
    scores = np.array([[0, 1], [np.nan, np.nan], [np.nan, 1], [0, np.nan], [0, np.inf]], np.float32)

    got = run_layer('type: "Accuracy" top: "y" top: "classes"', {"data": scores, "label": np.ones(5, np.float32)})

    np.testing.assert_allclose(got["y"], 0.4)
    np.testing.assert_allclose(got["classes"], [0, 0.4])


def test_accuracy_without_any_label(run_layer: RunLayer) -> None:
    got = run_layer(
        'type: "Accuracy" top: "y" accuracy_param { ignore_label: 0 }',
        {"data": np.ones((2, 3), np.float32), "label": np.zeros(2, np.float32)},
    )

    assert got["y"] == 0


def test_loss_of_a_smaller_batch_than_built_for(net_of: Callable[..., CaffeNet]) -> None:
    net = net_of(
        'layer { name: "x" type: "SoftmaxWithLoss" bottom: "data" bottom: "label" loss_weight: 0.5 }',
        {"data": (8, 3), "label": (8,)},
    )

    output = net({"data": torch.zeros(2, 3), "label": torch.tensor([0, 2])})

    assert output.loss is not None
    np.testing.assert_allclose(float(output.loss), 0.5 * np.log(3), rtol=1e-6)
    np.testing.assert_allclose(float(output.scalars["(automatic)"]), np.log(3), rtol=1e-6)


def test_a_second_top_of_infogain_holds_the_probabilities_without_gradient(net_of: Callable[..., CaffeNet]) -> None:
    """BVLC Caffe gives SoftmaxWithLoss none: its inner softmax takes over both loss weights, for one top."""
    net = net_of(
        'layer { name: "x" type: "InfogainLoss" bottom: "data" bottom: "l" bottom: "h" top: "loss" top: "p" '
        "loss_weight: 2 loss_weight: 0 infogain_loss_param { axis: 2 } }",
        {"data": (2, 3, 5), "l": (2, 3), "h": (5, 5)},
    )
    scores = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(2), requires_grad=True)
    labels = torch.tensor([[0, 4, 2], [1, 1, 3]])

    loss, outputs = net.run({"data": scores, "l": labels, "h": torch.eye(5)})

    probabilities = torch.softmax(scores, 2)
    expected = -2 * probabilities.gather(2, labels[:, :, None]).log().mean()
    torch.testing.assert_close(outputs["p"], probabilities.detach())
    torch.testing.assert_close(loss, expected)
    assert not outputs["p"].requires_grad


@pytest.mark.parametrize("weights", ["", "loss_weight: 1", "loss_weight: 1 loss_weight: 1"])
def test_a_second_top_needs_a_weight_of_zero(net_of: Callable[..., CaffeNet], weights: str) -> None:
    with pytest.raises(InputError, match=r"layer 'x': a second top .* needs loss_weight: 1 loss_weight: 0"):
        net_of(
            f'layer {{ name: "x" type: "InfogainLoss" bottom: "data" bottom: "l" top: "loss" top: "p" {weights} }}',
            {"data": (2, 5), "l": (2,)},
        )


@pytest.mark.parametrize(
    ("kind", "settings", "is_uneven"),
    [
        ("SoftmaxWithLoss", "", False),
        ("SoftmaxWithLoss", "loss_param { ignore_label: 0 normalization: FULL }", False),
        ("SoftmaxWithLoss", "loss_param { ignore_label: 0 normalize: false }", False),
        ("SoftmaxWithLoss", "loss_param { ignore_label: 0 }", True),
        ("SoftmaxWithLoss", "loss_param { normalization: NONE }", True),
        ("HingeLoss", "", False),
        ("MultinomialLogisticLoss", "", False),
    ],
)
def test_the_parts_of_a_batch_do_not_make_up_an_uneven_loss(
    net_of: Callable[..., CaffeNet], kind: str, settings: str, is_uneven: bool
) -> None:
    """Its definition: the losses of two halves, weighted by their samples, have the loss of all as their mean."""
    net = net_of(
        f'layer {{ name: "x" type: "{kind}" bottom: "data" bottom: "l" top: "loss" {settings} }}',
        {"data": (4, 3), "l": (4,)},
    )
    scores = torch.rand(4, 3, generator=torch.Generator().manual_seed(2))
    labels = torch.tensor([0, 0, 2, 1])

    def loss(part: slice) -> float:
        return float(net({"data": scores[part], "l": labels[part]}).loss)

    halves = (loss(slice(2)) + loss(slice(2, 4))) / 2
    assert (abs(halves - loss(slice(4))) > 1e-3) is is_uneven
    assert net.uneven_losses == ((f"x ({kind})",) if is_uneven else ())
    assert net.mixing_layers == net.uneven_losses


def test_the_weighted_sum_of_a_blob_is_uneven(net_of: Callable[..., CaffeNet]) -> None:
    net = net_of(
        'layer { name: "x" type: "Reduction" bottom: "data" top: "y" loss_weight: 1 reduction_param { axis: 1 } }',
        {"data": (4, 3)},
    )

    assert net.uneven_losses == ("x (Reduction)",)
