"""Fillers: their distributions by Caffe's definitions, and what the values depend on."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.frontends.caffe.net import CaffeNet

BuildNet = Callable[..., CaffeNet]
FAN_IN, FAN_OUT = 40 * 3 * 5, 300 * 3 * 5  # of a weight 300 x 40 x 3 x 5


def weight(
    net_of: BuildNet, filler: str, seed: int = 1, name: str = "x", kernel: str = "kernel_h: 3 kernel_w: 5"
) -> np.ndarray:
    net = net_of(
        f'layer {{ name: "{name}" type: "Convolution" bottom: "data" top: "y" convolution_param {{ '
        f"num_output: 300 {kernel} weight_filler {{ {filler} }} }} }}",
        {"data": (1, 40, 8, 8)},
        seed=seed,
    )
    values: np.ndarray = net.parameter_infos[0].parameter.detach().numpy()
    return values


UNIFORM = [
    ('type: "uniform" min: -0.3 max: 0.8', -0.3, 0.8),
    ('type: "xavier"', -math.sqrt(3 / FAN_IN), math.sqrt(3 / FAN_IN)),
    ('type: "xavier" variance_norm: FAN_OUT', -math.sqrt(3 / FAN_OUT), math.sqrt(3 / FAN_OUT)),
    (
        'type: "xavier" variance_norm: AVERAGE',
        -math.sqrt(6 / (FAN_IN + FAN_OUT)),
        math.sqrt(6 / (FAN_IN + FAN_OUT)),
    ),
]


@pytest.mark.parametrize(("filler", "low", "high"), UNIFORM)
def test_uniform_fillers(net_of: BuildNet, filler: str, low: float, high: float) -> None:
    values = weight(net_of, filler)

    width = high - low
    assert low <= values.min() < low + 1e-3 * width
    assert high - 1e-3 * width < values.max() <= high
    assert abs(values.mean() - (low + high) / 2) < 4 * width / math.sqrt(12 * values.size)
    np.testing.assert_allclose(values.std(), width / math.sqrt(12), rtol=0.01)


NORMAL = [
    ('type: "gaussian" mean: 0.5 std: 0.2', 0.5, 0.2),
    ('type: "msra"', 0, math.sqrt(2 / FAN_IN)),
    ('type: "msra" variance_norm: FAN_OUT', 0, math.sqrt(2 / FAN_OUT)),
    ('type: "msra" variance_norm: AVERAGE', 0, math.sqrt(4 / (FAN_IN + FAN_OUT))),
]


@pytest.mark.parametrize(("filler", "mean", "std"), NORMAL)
def test_normal_fillers(net_of: BuildNet, filler: str, mean: float, std: float) -> None:
    values = weight(net_of, filler)

    assert abs(values.mean() - mean) < 4 * std / math.sqrt(values.size)
    np.testing.assert_allclose(values.std(), std, rtol=0.01)
    within = (np.abs(values - mean) < std).mean()
    np.testing.assert_allclose(within, math.erf(1 / math.sqrt(2)), atol=0.01)


def test_sparse_keeps_few_values_of_each_output(net_of: BuildNet) -> None:
    values = weight(net_of, 'type: "gaussian" std: 1 sparse: 30')

    kept = values[values != 0]
    np.testing.assert_allclose(kept.size / values.size, 30 / 300, rtol=0.03)
    np.testing.assert_allclose(kept.std(), 1, rtol=0.02)


def test_constant_and_default(net_of: BuildNet) -> None:
    assert (weight(net_of, 'type: "constant" value: 0.25') == 0.25).all()
    assert not weight(net_of, "").any()


def test_positive_unitball(net_of: BuildNet) -> None:
    values = weight(net_of, 'type: "positive_unitball"').reshape(300, -1)

    assert values.min() >= 0
    np.testing.assert_allclose(values.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(values.std(), 2 / values.shape[1] / math.sqrt(12), rtol=0.02)


def test_bilinear(net_of: BuildNet) -> None:
    values = weight(net_of, 'type: "bilinear"', kernel="kernel_size: 4")

    line = np.array([0.25, 0.75, 0.75, 0.25])
    np.testing.assert_allclose(values, np.broadcast_to(np.outer(line, line), values.shape))


def test_values_depend_on_seed_and_name_only(net_of: BuildNet) -> None:
    filler = 'type: "xavier"'
    values = weight(net_of, filler)

    np.testing.assert_array_equal(weight(net_of, filler), values)
    assert not np.array_equal(weight(net_of, filler, seed=2), values)
    assert not np.array_equal(weight(net_of, filler, name="z"), values)


def test_values_do_not_depend_on_layers_before(net_of: BuildNet) -> None:
    layer = (
        'layer {{ name: "{0}" type: "InnerProduct" bottom: "data" top: "{0}" inner_product_param {{ '
        'num_output: 5 weight_filler {{ type: "gaussian" }} bias_filler {{ type: "uniform" }} }} }}'
    )
    inputs = {"data": (1, 7)}

    alone = net_of(layer.format("b"), inputs)
    after = net_of(layer.format("a") + layer.format("b"), inputs)

    found = {info.name: info.parameter.detach().numpy() for info in after.parameter_infos}
    for info in alone.parameter_infos:
        np.testing.assert_array_equal(info.parameter.detach().numpy(), found[info.name])
    assert not np.array_equal(found["a/0"], found["b/0"])


BAD = [
    ('type: "zeros"', "unknown filler 'zeros'; allowed are bilinear, constant,"),
    ('type: "bilinear"', "square"),
    ('type: "gaussian" std: 0', "std above 0"),
    ('type: "uniform" min: 2 max: 1', "min <= max"),
    ('type: "constant" value: nan', "finite"),
    ('type: "xavier" sparse: 3', "only gaussian takes it"),
]


@pytest.mark.parametrize(("filler", "message"), BAD)
def test_refused_fillers(net_of: BuildNet, filler: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"net.prototxt:2: layer 'x': .*{message}"):
        weight(net_of, filler)


@pytest.mark.parametrize("filler", ['"xavier"', '"msra"', '"positive_unitball"', '"gaussian" sparse: 1'])
@pytest.mark.parametrize("layer", ["PReLU channel_shared: true filler", "Scale num_axes: 0 filler"])
def test_a_single_value_has_no_axes_for_these_fillers(net_of: BuildNet, layer: str, filler: str) -> None:
    kind, settings = layer.split(" ", 1)
    head = f'layer {{ name: "x" type: "{kind}" bottom: "data" top: "y"\n{kind.lower()}_param {{ {settings}'

    net = net_of(f'{head} {{ type: "gaussian" std: 2 }} }} }}', {"data": (2, 3)})
    assert net.parameter_infos[0].parameter.shape == ()
    with pytest.raises(InputError, match=r"net.prototxt:3: layer 'x': \w+ filler needs a weight with axes; a single"):
        net_of(f"{head} {{ type: {filler} }} }} }}", {"data": (2, 3)})
