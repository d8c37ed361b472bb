"""The layers' native kernels against torch's own operations, over random shapes, settings and values."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from samovar import _native
from samovar.frontends.caffe.layers import kernels
from samovar.frontends.caffe.net import CaffeNet

Function = Callable[[torch.Tensor], torch.Tensor]
FORMATS = (torch.contiguous_format, torch.channels_last)
LAST = torch.channels_last
few = settings(max_examples=60)


def images(seed: int, shape: tuple[int, ...], memory_format: torch.memory_format, scale: float = 1.0) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.contiguous(memory_format=memory_format)


def both_ways(function: Function, x: torch.Tensor, gradient: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    """y and dx for a random dy, the same for every function."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = function(x)
    dy = images(1, tuple(y.shape), torch.contiguous_format) if gradient is None else gradient
    (dx,) = torch.autograd.grad(y, x, dy.to(y.dtype))
    return y.detach(), dx


def assert_close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-6) -> None:
    """Differences of at most `tolerance` of the largest value."""
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) <= tolerance * float(wanted.abs().max())


@dataclass(frozen=True)
class ResponseSettings:
    size: int
    alpha: float
    beta: float
    k: float
    is_within: bool
    rectifies: bool

    def native(self, x: torch.Tensor) -> torch.Tensor:
        divisor = self.size**2 if self.is_within else self.size
        response = _native.Response(self.size, self.alpha / divisor, self.beta, self.k, self.rectifies)
        assert kernels.takes(x)
        return kernels.respond(x, response, self.is_within)

    def torch(self, x: torch.Tensor) -> torch.Tensor:
        if self.rectifies:
            x = torch.relu(x)
        if not self.is_within:
            return F.local_response_norm(x, self.size, self.alpha, self.beta, self.k)
        return x * (self.k + self.alpha * F.avg_pool2d(x * x, self.size, 1, self.size // 2)) ** -self.beta


responses = st.builds(
    ResponseSettings,
    size=st.sampled_from([1, 3, 5, 7, 31]),
    alpha=st.sampled_from([1e-4, 0.1, 2.0]),
    beta=st.sampled_from([0.75, 0.5, 1.0]),
    k=st.sampled_from([0.5, 1.0, 2.0]),
    is_within=st.booleans(),
    rectifies=st.booleans(),
)


@few
@given(
    responses,
    st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 9), st.integers(1, 40)),
    st.sampled_from(FORMATS),
    st.sampled_from([0.01, 1.0, 300.0]),
    st.integers(0, 9),
)
def test_responses(
    given_settings: ResponseSettings,
    shape: tuple[int, ...],
    memory_format: torch.memory_format,
    scale: float,
    seed: int,
) -> None:
    x = images(seed, shape, memory_format, scale)

    y, dx = both_ways(given_settings.native, x)
    exact_y, exact_dx = both_ways(given_settings.torch, x.double())

    assert_close(y, exact_y)
    # The gradient is a difference of two terms, which are as exact as the output.
    first_term = images(1, shape, torch.contiguous_format) * (exact_y / x)
    assert float((dx - exact_dx).abs().max()) <= 2e-6 * float(first_term.abs().max())
    assert y.is_contiguous(memory_format=memory_format)


def test_not_a_number_stays_among_its_neighbours() -> None:
    x = torch.ones(1, 8, 2, 2).contiguous(memory_format=LAST)
    x[0, 3, 1, 1] = float("nan")
    found = ResponseSettings(3, 1.0, 0.75, 1.0, is_within=False, rectifies=True).native(x).isnan()
    assert found[0, :, 1, 1].tolist() == [False, False, True, True, True, False, False, False]
    assert int(found.sum()) == 3


@dataclass(frozen=True)
class PoolSettings:
    image: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]

    def outputs(self) -> tuple[int, int]:
        """torch's number of windows with `ceil_mode`, which drops the same ones as Caffe."""
        return tuple(self.torch(torch.zeros(1, 1, *self.image)).shape[2:])  # type: ignore[return-value]

    def native(self, x: torch.Tensor, rectifies: bool = False) -> torch.Tensor:
        outputs = self.outputs()
        rows, columns = zip(self.image, outputs, self.kernel, self.stride, self.pad, strict=True)
        assert kernels.takes_channels_last(x)
        return kernels.max_pool(x, _native.MaxPool(rows, columns, rectifies), outputs)

    def torch(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, self.kernel, self.stride, self.pad, ceil_mode=True)


@st.composite
def pools(draw: st.DrawFn) -> PoolSettings:
    kernel = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    image = draw(st.tuples(st.integers(kernel[0], 13), st.integers(kernel[1], 13)))
    stride = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    pad = draw(st.tuples(st.integers(0, kernel[0] // 2), st.integers(0, kernel[1] // 2)))
    return PoolSettings(image, kernel, stride, pad)


@few
@given(pools(), st.integers(1, 2), st.integers(32, 70), st.integers(0, 9))
def test_max_pool_to_the_last_bit(pool: PoolSettings, num_images: int, channels: int, seed: int) -> None:
    # Halves of small integers: many ties, and gradients whose sums are exact in any order.
    x = (images(seed, (num_images, channels, *pool.image), LAST) * 3).round() / 2
    x[0, 0, 0, 0], x[0, 1] = float("nan"), float("-inf")
    dy = images(seed + 1, (num_images, channels, *pool.outputs()), torch.contiguous_format).round()

    found, wanted = both_ways(pool.native, x, dy), both_ways(pool.torch, x, dy)
    rectified = both_ways(lambda x: pool.native(x, rectifies=True), x, dy)
    wanted_rectified = both_ways(lambda x: pool.torch(torch.relu(x)), x, dy)

    for one, other in zip(found + rectified, wanted + wanted_rectified, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert found[0].is_contiguous(memory_format=LAST)


def normalized_by_torch(x: torch.Tensor) -> torch.Tensor:
    mean = x.mean((0, 2, 3), keepdim=True)
    return (x - mean) / (x.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()


@few
@given(
    st.tuples(st.integers(1, 5), st.integers(32, 70), st.integers(3, 6), st.integers(3, 6)),
    st.sampled_from([0.0, 1.0, 1000.0]),
    st.integers(0, 9),
)
def test_normalized(shape: tuple[int, ...], offset: float, seed: int) -> None:
    x = images(seed, shape, LAST) + offset

    y, dx = both_ways(lambda x: kernels.normalized(x, 1e-5)[0], x)
    _, mean, variance = kernels.normalized(x, 1e-5)
    exact_y, exact_dx = both_ways(normalized_by_torch, x.double())

    assert_close(mean, x.double().mean((0, 2, 3)), 2e-7)
    assert_close(variance, x.double().var((0, 2, 3), correction=0), 2e-7)
    # A mean that is rounded to float32 is off by up to half its last digit.
    deviation = (variance + 1e-5).sqrt().reshape(1, -1, 1, 1)
    error = 1e-6 * (1 + mean.abs().reshape(1, -1, 1, 1) / deviation)
    assert bool(((y - exact_y).abs() <= error).all())
    assert bool(((dx - exact_dx).abs() <= 4 * error / deviation).all())


@few
@given(st.integers(1, 20), st.integers(1, 60), st.sampled_from([None, 0, 255]), st.integers(0, 9))
def test_softmax_loss(rows: int, classes: int, ignored: int | None, seed: int) -> None:
    scores = images(seed, (rows, classes), torch.contiguous_format, 5.0)
    labels = torch.randint(0, classes, (rows, 1), generator=torch.Generator().manual_seed(seed))
    if ignored is not None:
        labels[::3] = ignored
    assert kernels.takes_scores(scores, labels)

    found = kernels.softmax_loss(scores, labels, ignored, -1e30)
    wanted_labels = labels.flatten() if ignored is None else labels.flatten().where(labels.flatten() != ignored, -100)
    exact = scores.double().requires_grad_()
    total = F.cross_entropy(exact, wanted_labels, reduction="sum")
    (gradient,) = torch.autograd.grad(total, exact)

    assert found is not None
    assert found[0] == pytest.approx(float(total.detach()), rel=1e-6, abs=1e-6)
    assert found[1] == int((wanted_labels != -100).sum())
    assert float((found[2] - gradient).abs().max()) <= 1e-6


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_that_is_no_class_is_told(label: int) -> None:
    assert kernels.softmax_loss(torch.zeros(2, 4), torch.tensor([[0], [label]]), None, -87.0) is None


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    x = images(3, (5, 48, 21, 23), LAST)
    pool = PoolSettings((21, 23), (3, 3), (2, 2), (1, 1))
    across, within = (ResponseSettings(5, 0.1, 0.75, 1.0, is_within, rectifies=True) for is_within in (False, True))
    results = []
    for threads in (1, 2, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            functions: list[Function] = [
                across.native,
                within.native,
                pool.native,
                lambda x: kernels.normalized(x, 1e-5)[0],
            ]
            found = [both_ways(function, x) for function in functions]
            found += [both_ways(function.native, x.contiguous()) for function in (across, within)]
        finally:
            torch.set_num_threads(before)
        results.append(found)
    for other in results[1:]:
        for (y, dx), (other_y, other_dx) in zip(results[0], other, strict=True):
            assert torch.equal(y, other_y)
            assert torch.equal(dx, other_dx)


def test_what_a_kernel_cannot_take_is_left_to_torch() -> None:
    x = torch.zeros(2, 40, 6, 6)
    last = x.contiguous(memory_format=LAST)
    assert kernels.takes(x)
    assert kernels.takes(last)
    assert kernels.takes_channels_last(last)
    for other in (last.double(), last.bfloat16(), last[:, :, ::2], last[0], last[:0], torch.nn.Parameter(last)):
        assert not kernels.takes(other)
        assert not kernels.takes_channels_last(other)
    assert not kernels.takes_channels_last(x)
    assert not kernels.takes_channels_last(last[:, :8].contiguous(memory_format=LAST))


def test_a_traced_module_holds_no_kernel() -> None:
    seen = []

    def traced(x: torch.Tensor) -> torch.Tensor:
        seen.append(kernels.takes(x))
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(traced, torch.zeros(1, 2, 3, 3), check_trace=False)
    assert seen == [False]


@pytest.mark.parametrize("arguments", [(4, 0.1, 0.75, 1.0, False), (5, 0.1, 0.7, 1.0, False)])
def test_settings_without_a_kernel_are_refused(arguments: tuple[int, float, float, float, bool]) -> None:
    with pytest.raises(ValueError, match="Response"):
        _native.Response(*arguments)


@pytest.mark.parametrize("axis", [(8, 4, 2, 0, 0), (8, 4, 2, 2, 2), (8, 5, 2, 2, 0), (0, 0, 1, 1, 0)])
def test_windows_without_a_pixel_are_refused(axis: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="every window must hold a pixel"):
        _native.MaxPool(axis, (8, 4, 2, 2, 0), False)


LAYERS = [
    'type: "LRN" lrn_param { local_size: 3 alpha: 0.5 }',
    'type: "LRN" lrn_param { local_size: 3 alpha: 0.5 beta: 0.7 }',
    'type: "LRN" lrn_param { local_size: 3 alpha: 0.5 norm_region: WITHIN_CHANNEL }',
    'type: "Pooling" pooling_param { kernel_size: 3 stride: 2 }',
    'type: "Pooling" pooling_param { kernel_size: 3 stride: 2 pad: 2 }',
]


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("channels", [4, 32])
@pytest.mark.parametrize("text", LAYERS)
def test_a_layer_does_the_work_of_a_relu_before_it(
    net_of: Callable[..., CaffeNet], text: str, channels: int, memory_format: torch.memory_format
) -> None:
    x = images(5, (2, channels, 9, 9), memory_format)
    net = net_of(f'layer {{ name: "x" bottom: "data" top: "y" {text} }}', {"data": tuple(x.shape)})
    layer: Any = copy.deepcopy(net.layers[0])  # a module that holds nothing native

    wanted = both_ways(lambda x: layer(torch.relu(x))[0], x)
    layer.rectifies_bottom = True
    found = both_ways(lambda x: layer(x)[0], x)

    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


def test_results_have_the_type_and_place_of_what_is_given() -> None:
    x, pool = images(3, (2, 40, 6, 6), LAST), PoolSettings((6, 6), (3, 3), (2, 2), (1, 1))
    functions: list[Function] = [pool.native, lambda x: kernels.normalized(x, 1e-5)[0]]
    wanted = [both_ways(function, x, torch.ones_like(function(x))) for function in functions]
    torch.set_default_dtype(torch.float64)
    try:
        found = [both_ways(function, x, torch.ones_like(y)) for function, (y, _) in zip(functions, wanted, strict=True)]
    finally:
        torch.set_default_dtype(torch.float32)
    for pair, other in zip(wanted, found, strict=True):
        assert all(torch.equal(one, two) and one.dtype == two.dtype for one, two in zip(pair, other, strict=True))
    assert not kernels.takes_scores(torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.int64, device="meta"))
