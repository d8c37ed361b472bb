"""Dropout, stochastic pooling and DummyData: what is drawn follows from seed, layer and sample alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from samovar.data.order import SAMPLE_NUMBERS
from samovar.frontends.caffe.layers.base import sample_words
from samovar.frontends.caffe.net import CaffeNet

BuildNet = Callable[..., CaffeNet]

DROPOUT = 'layer { name: "drop" type: "Dropout" bottom: "data" top: "y" dropout_param { dropout_ratio: 0.25 } }'
SPP = 'layer { name: "spp" type: "SPP" bottom: "data" top: "y" spp_param { pyramid_height: 2 pool: STOCHASTIC } }'
POOLING = """
layer { name: "pool" type: "Pooling" bottom: "data" top: "y"
  pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 } }
"""
DUMMY = """
layer { name: "noise" type: "DummyData" top: "y" dummy_data_param { shape { dim: 6 dim: 500 }
  data_filler { type: "gaussian" mean: 2 std: 3 } } }
"""


def run(net: CaffeNet, data: torch.Tensor | None, numbers: list[int] | None = None) -> torch.Tensor:
    batch = {} if data is None else {"data": data}
    if numbers is not None:
        batch[SAMPLE_NUMBERS] = torch.tensor(numbers)
    return net(batch).scalars["y"]


def test_words_of_a_sample_depend_on_its_number_alone() -> None:
    key = np.array([1, 2], np.uint64)

    together = sample_words(key, np.array([7, 8, 9, 40, 3]), 21)

    for row, number in zip(together, (7, 8, 9, 40, 3), strict=True):
        np.testing.assert_array_equal(row, sample_words(key, np.array([number]), 21)[0])
    assert len(np.unique(together)) > 100
    assert (sample_words(key + np.uint64(1), np.array([7]), 21) != together[0]).all()


@pytest.mark.parametrize("text", [DROPOUT, POOLING, SPP])
def test_a_sample_meets_the_same_draws_in_any_batch(net_of: BuildNet, text: str) -> None:
    data = torch.rand(6, 3, 4, 4, generator=torch.Generator().manual_seed(1)) + 0.1
    net = net_of(text, {"data": (6, 3, 4, 4)})

    whole = run(net, data, [10, 11, 12, 13, 14, 15])
    parts = [run(net, data[:2], [10, 11]), run(net, data[2:], [12, 13, 14, 15])]

    assert torch.equal(whole, torch.cat(parts))
    assert torch.equal(whole, run(net_of(text, {"data": (6, 3, 4, 4)}), data, [10, 11, 12, 13, 14, 15]))
    assert not torch.equal(whole, run(net, data, [16, 17, 18, 19, 20, 21]))
    assert not torch.equal(whole, run(net_of(text, {"data": (6, 3, 4, 4)}, seed=2), data, [10, 11, 12, 13, 14, 15]))
    renamed = net_of(text.replace('name: "', 'name: "other_'), {"data": (6, 3, 4, 4)})
    assert not torch.equal(whole, run(renamed, data, [10, 11, 12, 13, 14, 15]))


def test_without_numbers_the_net_counts_the_samples(net_of: BuildNet) -> None:
    data = torch.ones(4, 50)
    net, same = net_of(DROPOUT, {"data": (4, 50)}), net_of(DROPOUT, {"data": (4, 50)})

    first, second = run(net, data), run(net, data)

    assert not torch.equal(first, second)
    assert torch.equal(first, run(same, data, [0, 1, 2, 3]))
    assert torch.equal(second, run(same, data, [4, 5, 6, 7]))


def test_dropout_keeps_its_share_and_the_mean(net_of: BuildNet) -> None:
    x = torch.ones(40, 1000, requires_grad=True)
    net = net_of(DROPOUT.replace('top: "y"', 'top: "y" loss_weight: 1'), {"data": (40, 1000)})

    output = net({"data": x})
    output.loss.backward()

    y = output.scalars["y"]
    assert torch.equal(x.grad, y)
    np.testing.assert_allclose(y.unique().numpy(), [0, 1 / 0.75], rtol=1e-6)
    assert 0.74 < float((y != 0).float().mean()) < 0.76


def test_dropout_does_nothing_in_a_test(net_of: BuildNet) -> None:
    data = torch.ones(2, 3)

    assert torch.equal(run(net_of(DROPOUT, {"data": (2, 3)}, phase="TEST"), data), data)
    assert torch.equal(run(net_of(DROPOUT[:-1] + " phase: TEST }", {"data": (2, 3)}), data), data)


def test_stochastic_pooling_draws_in_proportion(net_of: BuildNet) -> None:
    window = torch.tensor([[1.0, 2.0], [0.0, 5.0]])
    x = window.repeat(2000, 1, 1, 1).requires_grad_()
    net = net_of(POOLING.replace('top: "y"', 'top: "y" loss_weight: 1'), {"data": (2000, 1, 2, 2)})

    output = net({"data": x})
    output.loss.backward()

    drawn = output.scalars["y"].flatten()
    assert torch.equal((x.detach() * x.grad).sum((1, 2, 3)), drawn)
    assert torch.equal(x.grad.sum((1, 2, 3)), torch.ones(2000))
    for value, share in ((0, 0.0), (1, 1 / 8), (2, 2 / 8), (5, 5 / 8)):
        assert float((drawn == value).float().mean()) == pytest.approx(share, abs=0.035)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(7, 33), (3, 5, 4, 6)])
def test_dropout_scales_by_one_mask_forward_and_backward(
    net_of: BuildNet, ratio: float, shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(4)
    x = (torch.randn(shape, generator=generator).abs() + 0.1).requires_grad_()
    dy = torch.randn(shape, generator=generator)
    net = net_of(DROPOUT.replace("0.25", str(ratio)).replace('top: "y"', 'top: "y" loss_weight: 1'), {"data": shape})
    (layer,) = net.layers
    tops: list[torch.Tensor] = []
    layer.register_forward_hook(lambda _layer, _inputs, found: tops.extend(found))

    net({"data": x})
    (gradient,) = torch.autograd.grad(tops[0], [x], dy)

    mask = (tops[0] != 0).double()
    torch.testing.assert_close(tops[0].double(), mask * x.double() / (1 - ratio), rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient.double(), mask * dy.double() / (1 - ratio), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (2, 3)])
def test_stochastic_pooling_takes_a_value_of_its_window(net_of: BuildNet, kernel: int, stride: int) -> None:
    shape = (4, 3, 7, 8)
    x = (torch.randperm(672, generator=torch.Generator().manual_seed(3)).float() + 1).reshape(shape).requires_grad_()
    text = POOLING.replace("kernel_size: 2 stride: 2", f"kernel_size: {kernel} stride: {stride}")
    net = net_of(text.replace('top: "y"', 'top: "y" loss_weight: 1'), {"data": shape})

    output = net({"data": x})
    output.loss.backward()

    y, taken = output.scalars["y"], torch.zeros(shape)
    for n, c, i, j in np.ndindex(*y.shape):
        window = x.detach()[n, c, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
        place = (window == y[n, c, i, j]).nonzero()
        assert len(place) == 1
        taken[n, c, i * stride + place[0, 0], j * stride + place[0, 1]] += 1
    assert torch.equal(x.grad, taken)


def test_stochastic_pooling_of_windows_that_leave_the_image(net_of: BuildNet) -> None:
    x = torch.zeros(3, 1, 3, 3)
    x[:, :, 2, 2] = 4

    y = run(net_of(POOLING, {"data": (3, 1, 3, 3)}), x)

    assert torch.equal(y, torch.tensor([[0.0, 0], [0, 4]]).expand(3, 1, 2, 2))


def test_dummy_data_draws_anew_by_sample(net_of: BuildNet) -> None:
    net = net_of(DUMMY)

    first, second = run(net, None, [0, 1, 2, 3, 4, 5]), run(net, None, [3, 4, 5, 6, 7, 8])

    assert torch.equal(first[3:], second[:3])
    assert not torch.equal(first[:3], second[3:])
    assert float(first.mean()) == pytest.approx(2, abs=0.3)
    assert float(first.std()) == pytest.approx(3, abs=0.3)
    assert not torch.equal(run(net, None), run(net, None))


def test_dummy_data_of_constants(net_of: BuildNet) -> None:
    net = net_of(
        'layer { name: "d" type: "DummyData" top: "a" top: "b" dummy_data_param { num: 2 num: 3 channels: 4 height: 1 '
        "width: 5 data_filler { value: 7 } data_filler { } } }"
    )

    scalars = net({}).scalars

    assert torch.equal(scalars["a"], torch.full((2, 4, 1, 5), 7.0))
    assert torch.equal(scalars["b"], torch.zeros(3, 4, 1, 5))


def test_masks_are_those_of_the_whole_batch_under_workers(net_of: BuildNet, tmp_path: Path) -> None:
    """The loss of two workers' shares is the loss of the batch, with dropout in between."""
    text = """
layer { name: "drop" type: "Dropout" bottom: "data" top: "h" }
layer { name: "ip" type: "InnerProduct" bottom: "h" top: "y" inner_product_param { num_output: 3
  weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Reduction" bottom: "y" top: "loss" reduction_param { operation: SUMSQ } loss_weight: 1 }
"""
    data = torch.randn(8, 20, generator=torch.Generator().manual_seed(1))
    numbers = torch.arange(800, 808)
    net = net_of(text, {"data": (8, 20)})

    whole = net({"data": data, SAMPLE_NUMBERS: numbers}).loss
    halves = [net({"data": data[part], SAMPLE_NUMBERS: numbers[part]}).loss for part in (slice(4), slice(4, 8))]

    torch.testing.assert_close(whole, halves[0] + halves[1], rtol=1e-6, atol=0)


def test_dummy_data_has_a_row_for_each_sample_of_a_part(net_of: BuildNet) -> None:
    """Workers that share a batch have a part of it each. A top with another number of rows stays whole."""
    net = net_of(
        'layer { name: "d" type: "DummyData" top: "noise" top: "b" top: "c" dummy_data_param { shape { dim: 6 '
        'dim: 50 } shape { dim: 6 dim: 3 } shape { dim: 2 } data_filler { type: "gaussian" } data_filler { value: 7 } '
        'data_filler { } } } layer { name: "sum" type: "Eltwise" bottom: "data" bottom: "noise" top: "y" }',
        {"data": (6, 50)},
    )
    data, numbers = torch.rand(6, 50), [10, 11, 12, 13, 14, 15]

    whole = run(net, data, numbers)

    for size in (1, 2, 4):
        assert torch.equal(run(net, data[:size], numbers[:size]), whole[:size])
        scalars = net({"data": data[:size]}).scalars
        assert torch.equal(scalars["b"], torch.full((size, 3), 7.0))
        assert scalars["c"].shape == (2,)


def test_dummy_data_alone_is_cut_like_any_batch(net_of: BuildNet) -> None:
    net = net_of(DUMMY)

    assert torch.equal(run(net, None, [3, 4]), run(net, None, [0, 1, 2, 3, 4, 5])[3:5])


def test_single_values_are_drawn(net_of: BuildNet) -> None:
    net = net_of(DUMMY.replace("dim: 6 dim: 500", "") + DROPOUT.replace('"data"', '"y"'))

    assert run(net, None).shape == ()
