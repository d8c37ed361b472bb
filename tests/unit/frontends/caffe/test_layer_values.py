"""Small numbers worked out by hand where Caffe's arithmetic differs from what one would expect, or is easy to miss."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from samovar.core.errors import InputError
from samovar.frontends.caffe.net import CaffeNet

BuildNet = Callable[..., CaffeNet]
RunLayer = Callable[..., dict[str, np.ndarray]]


def near(ours: np.ndarray, expected: object) -> None:
    np.testing.assert_allclose(ours, np.asarray(expected, np.float32), rtol=1e-5, atol=1e-6)


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32).reshape(-1, 1)


ELEMENTWISE = [
    ('type: "Power"  power_param { power: 2 scale: 3 shift: 1 }', [1, -1], [16, 4], [24, -12]),
    ('type: "Power"  power_param { power: 0.5 scale: 0 shift: 9 }', [1, -1], [3, 3], [0, 0]),
    ('type: "Power"  power_param { power: 0 }', [0, 5], [1, 1], [0, 0]),
    ('type: "Exp"  exp_param { base: 2 scale: 2 shift: 1 }', [0, 1], [2, 8], [4 * np.log(2), 16 * np.log(2)]),
    ('type: "Log"  log_param { base: 10 scale: 2 shift: 4 }', [3, 48], [1, 2], [0.2 / np.log(10), 0.02 / np.log(10)]),
    ('type: "Clip"  clip_param { min: -1 max: 2 }', [-1, 2, 3], [-1, 2, 2], [1, 1, 0]),
    ('type: "AbsVal" ', [-2, 0, 3], [2, 0, 3], [-1, 0, 1]),
    ('type: "BNLL" ', [0, 100], [np.log(2), 100], [0.5, 1]),
    ('type: "ELU"  elu_param { alpha: 2 }', [-1, 1], [2 * np.expm1(-1), 1], [2 * np.exp(-1), 1]),
    ('type: "Swish"  swish_param { beta: 2 }', [0], [0], [0.5]),
]


@pytest.mark.parametrize(("settings", "x", "y", "dx"), ELEMENTWISE)
def test_elementwise(run_layer: RunLayer, settings: str, x: list[float], y: list[float], dx: list[float]) -> None:
    got = run_layer(f'top: "y" {settings}', {"data": column(*x)}, np.ones((len(x), 1)))

    near(got["y"].ravel(), y)
    near(got["d data"].ravel(), dx)


@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_relu_at_its_kink(run_layer: RunLayer, slope: float) -> None:
    x = np.array([[-2.0, -0.0, 0.0, 3.0]], np.float32)

    got = run_layer(f'type: "ReLU" top: "y" relu_param {{ negative_slope: {slope} }}', {"data": x}, np.ones((1, 4)))

    np.testing.assert_allclose(got["y"], [[-2 * slope, 0, 0, 3]])
    np.testing.assert_allclose(got["d data"], [[slope, slope, slope, 1]])


def test_softmax_of_scores_far_apart(run_layer: RunLayer) -> None:
    got = run_layer('type: "Softmax" top: "y"', {"data": np.array([[-1e4, 88, 89, 1e4]], np.float32)}, np.ones(4))

    near(got["y"], [[0, 0, 0, 1]])
    near(got["d data"], np.zeros((1, 4)))


def test_prelu_starts_at_a_quarter_and_scale_at_one(net_of: BuildNet) -> None:
    net = net_of(
        'layer { name: "p" type: "PReLU" bottom: "data" top: "p" }'
        'layer { name: "s" type: "Scale" bottom: "p" top: "s" scale_param { bias_term: true } }'
        'layer { name: "b" type: "Bias" bottom: "s" top: "b" }',
        {"data": (2, 3)},
    )

    starts = {info.name: info.parameter.detach().unique().tolist() for info in net.parameter_infos}
    assert starts == {"p/0": [0.25], "s/0": [1.0], "s/1": [0.0], "b/0": [0.0]}


BATCH_NORM = 'layer { name: "bn" type: "BatchNorm" bottom: "data" top: "y" '


def test_batch_norm_keeps_running_sums(net_of: BuildNet) -> None:
    net = net_of(BATCH_NORM + "batch_norm_param { moving_average_fraction: 0.5 eps: 0 } }", {"data": (4, 1)})
    x = torch.tensor([[1.0], [3], [5], [7]])  # mean 4, variance 5, over 3 instead of 4: 20 / 3

    y = net({"data": x}).scalars["y"]

    near(y.numpy(), (x - 4) / np.sqrt(5))
    net({"data": 2 * x})
    sums = [info.parameter.detach().numpy() for info in net.parameter_infos]
    near(sums[0], [4 * 0.5 + 8])
    near(sums[1], [20 / 3 * 0.5 + 80 / 3])
    near(sums[2], [1.5])
    assert [info.is_statistic for info in net.parameter_infos] == [True] * 3
    assert [(info.lr_mult, info.decay_mult) for info in net.parameter_infos] == [(0, 0)] * 3
    assert not any(info.parameter.requires_grad for info in net.parameter_infos)


def test_batch_norm_in_a_test_divides_by_the_count(net_of: BuildNet) -> None:
    train = net_of(BATCH_NORM + "batch_norm_param { eps: 0 } }", {"data": (4, 1)})
    test = net_of(BATCH_NORM + "batch_norm_param { eps: 0 } }", {"data": (4, 1)}, phase="TEST")
    test.share_parameters(train)
    for info, value in zip(train.parameter_infos, (6.0, 8.0, 2.0), strict=True):
        info.parameter.data.fill_(value)

    y = test({"data": torch.tensor([[3.0], [5], [7], [1]])}).scalars["y"]

    near(y.numpy(), [[0], [1], [2], [-1]])
    assert [float(info.parameter) for info in test.parameter_infos] == [6, 8, 2]


def test_the_variance_of_a_single_value_is_none(net_of: BuildNet) -> None:
    net = net_of(BATCH_NORM + "}", {"data": (1, 2)})

    y = net({"data": torch.tensor([[3.0, 4.0]])}).scalars["y"]

    near(y.numpy(), [[0, 0]])
    assert [info.parameter.tolist() for info in net.parameter_infos] == [[3, 4], [0, 0], [1]]


def test_lrn_within_a_channel_ignores_k(run_layer: RunLayer) -> None:
    got = run_layer(
        'type: "LRN" top: "y" lrn_param { local_size: 3 alpha: 9 beta: 1 k: 100 norm_region: WITHIN_CHANNEL }',
        {"data": np.full((1, 1, 1, 2), 2.0, np.float32)},
    )

    near(got["y"].ravel(), [2 / (1 + 8), 2 / (1 + 8)])


def test_mvn_takes_eps_for_nothing_in_its_gradient(run_layer: RunLayer) -> None:
    """Deviation 1, eps 1: y = x / 2; by Caffe dx = (dy - mean(dy) - y mean(dy y)) / 2."""
    got = run_layer(
        'type: "MVN" top: "y" mvn_param { eps: 1 }',
        {"data": np.array([1, -1], np.float32).reshape(1, 1, 1, 2)},
        np.array([1.0, 0]),
    )

    near(got["y"].ravel(), [0.5, -0.5])
    near(got["d data"].ravel(), [(1 - 0.5 - 0.5 * 0.25) / 2, (-0.5 + 0.5 * 0.25) / 2])


def test_of_equal_values_the_maximum_takes_the_gradient_of_one(net_of: BuildNet) -> None:
    net = net_of(
        'layer { name: "x" type: "Eltwise" bottom: "a" bottom: "b" bottom: "c" top: "y" loss_weight: 1 '
        "eltwise_param { operation: MAX } }",
        {name: (1, 3) for name in "abc"},
    )
    values = {"a": [1.0, 2, 3], "b": [1.0, 2, 1], "c": [1.0, 3, 3]}
    batch = {name: torch.tensor([value], requires_grad=True) for name, value in values.items()}

    net(batch).loss.backward()

    assert [batch[name].grad.tolist() for name in "abc"] == [[[0, 0, 1]], [[1, 0, 0]], [[0, 1, 0]]]


def test_contrast_adds_to_the_distance(run_layer: RunLayer) -> None:
    """d = 5, margin 6: loss (6 - 5)^2 / 2; gradient -(6 - 5) / (5 + 1e-4) times the difference."""
    got = run_layer(
        'type: "ContrastiveLoss" top: "y" contrastive_loss_param { margin: 6 }',
        {"data": np.array([[3, 4]], np.float32), "b": np.zeros((1, 2), np.float32), "l": np.zeros(1, np.float32)},
        np.ones(()),
    )

    near(got["y"], 0.5)
    np.testing.assert_allclose(got["d data"], [[-3 / 5.0001, -4 / 5.0001]], rtol=1e-6)


def test_logarithms_stop_and_gradients_do_not(run_layer: RunLayer) -> None:
    got = run_layer(
        'type: "MultinomialLogisticLoss" top: "y"',
        {"data": np.array([[0.0, 1.0]], np.float32), "l": np.zeros(1, np.float32)},
        np.ones(()),
    )

    near(got["y"], -np.log(1e-20))
    np.testing.assert_allclose(got["d data"], [[-1e20, 0]], rtol=1e-5)


def test_argmax_prefers_the_last_of_equals(run_layer: RunLayer) -> None:
    x = np.array([[2, 5, 5, 1]], np.float32)

    got = run_layer('type: "ArgMax" top: "y" argmax_param { top_k: 3 out_max_val: true }', {"data": x})

    near(got["y"], [[[2, 1, 0], [5, 5, 2]]])


def test_euclidean_loss_of_integer_labels(net_of: BuildNet) -> None:
    net = net_of('layer { name: "x" type: "EuclideanLoss" bottom: "data" bottom: "l" }', {"data": (2, 1), "l": (2,)})

    output = net({"data": torch.tensor([[1.0], [3.0]]), "l": torch.tensor([3, 2])})

    assert float(output.loss) == (4 + 1) / 4
    assert list(output.scalars) == ["(automatic)"]


def test_several_losses_without_tops_add(net_of: BuildNet) -> None:
    net = net_of(
        'layer { name: "x" type: "EuclideanLoss" bottom: "data" bottom: "l" }'
        'layer { name: "y" type: "EuclideanLoss" bottom: "data" bottom: "l" loss_weight: 0.5 }'
        'layer { name: "z" type: "Silence" bottom: "l" }',
        {"data": (2, 1), "l": (2, 1)},
    )

    output = net({"data": torch.tensor([[1.0], [3.0]]), "l": torch.tensor([[3.0], [2.0]])})

    assert float(output.loss) == 1.5 * 5 / 4
    assert sorted(output.scalars) == ["(automatic)", "(automatic) 2"]


LOSSES = [
    *(f'type: "SoftmaxWithLoss" loss_param {{ normalization: {mode} }}' for mode in ("VALID", "FULL", "BATCH_SIZE")),
    'type: "InfogainLoss" bottom: "matrix"',
    'type: "HingeLoss"',
    'type: "MultinomialLogisticLoss"',
]
PAIR_LOSSES = ["EuclideanLoss", "SigmoidCrossEntropyLoss", "ContrastiveLoss"]


@pytest.mark.parametrize("loss", [*LOSSES, *PAIR_LOSSES])
def test_the_loss_of_a_batch_without_samples_is_zero(net_of: BuildNet, loss: str) -> None:
    settings = "convolution_param { num_output: 3 kernel_size: 1 }"
    bottoms = 'bottom: "y" bottom: "labels"'
    if loss in PAIR_LOSSES:
        loss, bottoms = f'type: "{loss}"', 'bottom: "y" bottom: "z"' + ' bottom: "labels"' * (loss == PAIR_LOSSES[-1])
    net = net_of(
        'layer { name: "f" type: "Filter" bottom: "data" bottom: "label" bottom: "keep" top: "kept" top: "labels" }'
        f'layer {{ name: "c" type: "Convolution" bottom: "kept" top: "c" {settings} }}'
        'layer { name: "n" type: "BatchNorm" bottom: "c" top: "n" }'
        'layer { name: "m" type: "MVN" bottom: "n" top: "m" }'
        'layer { name: "y" type: "InnerProduct" bottom: "m" top: "y" inner_product_param { num_output: 3 } }'
        'layer { name: "z" type: "InnerProduct" bottom: "m" top: "z" inner_product_param { num_output: 3 } }'
        f'layer {{ name: "loss" {bottoms} {loss} top: "loss" }}',
        {"data": (2, 3, 2, 2), "label": (2,), "keep": (2,), "matrix": (3, 3)},
    )
    batch = {"data": torch.ones(2, 3, 2, 2), "label": torch.ones(2), "keep": torch.zeros(2), "matrix": torch.eye(3)}

    found = net(batch).loss

    assert found is not None
    assert float(found.detach()) == 0
    found.backward()
    gradients = [info.parameter.grad for info in net.parameter_infos]
    assert not any(gradient.any() for gradient in gradients if gradient is not None)
    assert not any(info.parameter.any() for info in net.parameter_infos if info.is_statistic)


def test_the_last_part_of_a_batch_is_what_is_left(net_of: BuildNet) -> None:
    net = net_of(
        'layer { name: "x" type: "Slice" bottom: "data" top: "a" top: "b" slice_param { axis: 0 slice_point: 2 } }',
        {"data": (4, 3)},
    )

    for size in (3, 4, 7):
        data = torch.arange(size * 3.0).reshape(size, 3)
        parts = net({"data": data}).scalars
        assert torch.equal(parts["a"], data[:2])
        assert torch.equal(parts["b"], data[2:])
    with pytest.raises(InputError, match=r"net\.prototxt:2: layer 'x': slice_point: 2, but axis 0 has 2 values; give"):
        net({"data": torch.zeros(2, 3)})


def test_silence_leaves_no_output(net_of: BuildNet) -> None:
    net = net_of(
        'layer { name: "x" type: "Slice" bottom: "data" top: "a" top: "b" }'
        'layer { name: "z" type: "Silence" bottom: "b" }',
        {"data": (1, 4)},
    )

    assert list(net({"data": torch.zeros(1, 4)}).scalars) == ["a"]


def test_in_place_after_a_split_spares_the_other_branch(net_of: BuildNet) -> None:
    net = net_of(
        'layer { name: "s" type: "Split" bottom: "data" top: "a" top: "b" }'
        'layer { name: "r" type: "ReLU" bottom: "a" top: "a" }'
        'layer { name: "d" type: "Dropout" bottom: "b" top: "b" phase: TEST }'
        'layer { name: "q" type: "ReLU" bottom: "b" top: "b" }',
        {"data": (1, 2)},
    )
    data = torch.tensor([[-1.0, 2.0]])

    net({"data": data})

    assert data.tolist() == [[-1, 2]]
    assert not any(layer.overwrites_bottom for layer in net.layers)


@pytest.mark.parametrize(
    ("written", "weight", "factor"),
    [("", "loss_weight: 1", 1), ("", "", 1), ("loss_weight: 1", "loss_weight: 1", 2), ("", "loss_weight: 3", 3)],
)
def test_a_loss_that_another_takes_sends_its_gradient_once(
    net_of: BuildNet, written: str, weight: str, factor: float
) -> None:
    """As in Caffe, whose displayed loss counts both in any case."""
    loss = f'layer {{ name: "l" type: "SoftmaxWithLoss" bottom: "data" bottom: "label" top: "l" {written} }}'
    total = f'layer {{ name: "t" type: "Power" bottom: "l" top: "t" {weight} }}'
    net = net_of(loss + total, {"data": (2, 3), "label": (2,)})
    x, labels = torch.rand(2, 3, requires_grad=True), torch.tensor([0, 1])
    plain = torch.nn.functional.cross_entropy(x, labels)
    (wanted,) = torch.autograd.grad(plain, x)
    output = net({"data": x, "label": labels})
    output.loss.backward()
    torch.testing.assert_close(x.grad, factor * wanted)
    shown = 1 + (float(weight[-1]) if weight else 0)
    torch.testing.assert_close(output.loss.detach(), shown * plain.detach())
