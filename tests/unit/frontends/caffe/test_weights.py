"""Which array of a caffemodel belongs to which parameter."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from samovar.core.errors import InputError
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.weights import match_weights
from tests.unit.frontends.caffe.conftest import BuildNet

FILE = Path("w.caffemodel")


@pytest.fixture
def net(net_of: Callable[..., CaffeNet]) -> CaffeNet:
    return net_of(
        'layer { name: "a" type: "InnerProduct" bottom: "data" top: "a" inner_product_param { num_output: 2 } }'
        'layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" inner_product_param { num_output: 4 } }',
        {"data": (1, 3)},
    )


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_by_name(net: CaffeNet) -> None:
    matched = match_weights(net, {"b": [2 * ones(4, 2), ones(4)], "other": [ones(9)]}, FILE)

    assert list(matched.arrays) == ["b/0", "b/1"]
    np.testing.assert_array_equal(matched.arrays["b/0"], 2 * ones(4, 2))
    assert matched.missing == ("a",)
    assert matched.ignored == ("other",)


def test_four_axes_of_old_files(net: CaffeNet) -> None:
    matched = match_weights(net, {"a": [ones(1, 1, 2, 3), ones(1, 1, 1, 2)]}, FILE)

    assert [array.shape for array in matched.arrays.values()] == [(2, 3), (2,)]


BAD = [
    ({"a": [ones(3, 2), ones(2)]}, "w.caffemodel: layer 'a', array 0 has shape 3 x 2, but 2 x 3 in the net"),
    ({"a": [ones(2, 3)]}, "layer 'a' has 1 arrays, but 2 in the net"),
    ({"a": [ones(2, 3), np.array([1, np.nan], np.float32)]}, "array 1 has 1 values that are NaN or infinite"),
    (
        {"c": [ones(2, 3)], "d": [ones(1)]},
        r"another net: its layers \['c', 'd'\] are none of .*\['a', 'b'\]",
    ),
    ({}, "belongs to another net: its layers .none with weights."),
]


@pytest.mark.parametrize(("weights", "message"), BAD)
def test_refused(net: CaffeNet, weights: dict[str, list[np.ndarray]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        match_weights(net, weights, FILE)


def test_a_sharing_layer_has_its_own_shape_in_the_file(net_of: Callable[..., CaffeNet]) -> None:
    """Also that of the layer that owns the array is read."""
    net = net_of(
        'layer { name: "a" type: "InnerProduct" bottom: "data" top: "a" param { name: "w" }'
        "  inner_product_param { num_output: 2 bias_term: false } }"
        'layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" param { name: "w" share_mode: PERMISSIVE }'
        "  inner_product_param { num_output: 3 bias_term: false } }",
        {"data": (1, 3)},
    )
    values = np.arange(6, dtype=np.float32)
    for shape in ((3, 2), (2, 3)):
        matched = match_weights(net, {"a": [values.reshape(2, 3)], "b": [values.reshape(shape)]}, FILE)
        np.testing.assert_array_equal(matched.arrays["a/0"], values.reshape(2, 3))


def test_a_layer_that_shares_all_is_not_missing(net_of: Callable[..., CaffeNet]) -> None:
    """An HDF5 caffemodel holds shared parameters with the first of their layers only."""
    shared = 'param { name: "w" } param { name: "b" } inner_product_param { num_output: 3 }'
    net = net_of(
        f'layer {{ name: "a" type: "InnerProduct" bottom: "data" top: "a" {shared} }}'
        f'layer {{ name: "b" type: "InnerProduct" bottom: "a" top: "b" {shared} }}',
        {"data": (1, 3)},
    )
    matched = match_weights(net, {"a": [ones(3, 3), ones(3)]}, FILE)

    assert list(matched.arrays) == ["a/0", "a/1"]
    assert matched.missing == ()


def test_a_layer_may_lack_the_arrays_that_it_shares_and_no_others(net_of: Callable[..., CaffeNet]) -> None:
    """So Caffe writes HDF5: ip2 shares ip1's weight, ip3 has its own arrays, ip4 shares ip3's bias."""
    layer = (
        'layer {{ name: "{0}" type: "InnerProduct" bottom: "data" top: "{0}" '
        'param {{ name: "{1}" }} param {{ name: "{2}" }} inner_product_param {{ num_output: 3 }} }}'
    )
    names = [("a", "w", "b"), ("b", "w", ""), ("c", "", "c"), ("d", "", "c")]
    net = net_of("".join(layer.format(*name) for name in names), {"data": (1, 3)})
    absent = ones(0)
    weights = {
        "a": [ones(3, 3), ones(3)],
        "b": [absent, 2 * ones(3)],
        "c": [3 * ones(3, 3), 4 * ones(3)],
        "d": [5 * ones(3, 3)],
    }

    matched = match_weights(net, weights, FILE)

    assert {name: float(array.flat[0]) for name, array in matched.arrays.items()} == {
        "a/0": 1, "a/1": 1, "b/1": 2, "c/0": 3, "c/1": 4, "d/0": 5,
    }  # fmt: skip
    assert matched.missing == ()
    for lacking in ({"b": [ones(3, 3)]}, {"b": [ones(3, 3), absent]}, {"d": [absent, ones(3)]}):
        with pytest.raises(InputError, match=r"layer '[bd]' has 1 arrays, but 2 in the net"):
            match_weights(net, weights | lacking, FILE)


def test_permissive_sharing_with_a_layer_of_the_other_phase(net_of: BuildNet) -> None:
    """As in Caffe: nets share a layer's array in the shape of that layer, though its owner is in one net alone."""
    only_here = (
        'layer { name: "o" type: "InnerProduct" bottom: "data" top: "o" include { phase: TRAIN } param { name: "w" }'
    )
    settings = "inner_product_param {{ num_output: {} bias_term: false weight_filler {{ type: 'uniform' }} }}"
    text = (
        f'{only_here} {settings.format(4)} }} layer {{ name: "z" type: "InnerProduct" bottom: "other" top: "y" '
        f'param {{ name: "w" share_mode: PERMISSIVE }} {settings.format(6)} }}'
    )
    inputs = {"data": (2, 6), "other": (2, 4)}
    net, test = (net_of(text, inputs, phase=phase) for phase in ("TRAIN", "TEST"))
    test.share_parameters(net)
    (w,) = (info.parameter for info in net.parameter_infos)
    assert tuple(w.shape) == (4, 6)
    x = torch.ones(2, 4)
    torch.testing.assert_close(
        test({"data": torch.ones(2, 6), "other": x}).scalars["y"], x @ w.detach().reshape(6, 4).t()
    )
