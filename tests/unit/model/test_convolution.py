"""Convolutions that write their gradients where they belong, against plain ones in double precision."""

import pytest
import torch
import torch.nn.functional as F

from samovar.model.direct import ConvolutionWindow, GradientSink, convolution
from samovar.model.half import use_half

LAST = torch.channels_last
WINDOWS = {
    "3x3 padded": ((4, 6, 3, 3), ConvolutionWindow(padding=(1, 1))),
    "strided": ((4, 6, 5, 3), ConvolutionWindow(stride=(2, 3), padding=(2, 0))),
    "dilated": ((4, 6, 3, 3), ConvolutionWindow(dilation=(2, 1))),
    "grouped": ((4, 3, 3, 3), ConvolutionWindow(padding=(1, 1), groups=2)),
    "pointwise": ((5, 6, 1, 1), ConvolutionWindow()),
    "pointwise, strided": ((5, 6, 1, 1), ConvolutionWindow(stride=(2, 2))),
    "pointwise, padded": ((5, 6, 1, 1), ConvolutionWindow(padding=(1, 1))),
    "pointwise, grouped": ((4, 3, 1, 1), ConvolutionWindow(groups=2)),
}


class Bench:
    """An input, a weight and a bias; the last two with sinks or without."""

    def __init__(self, weight_shape: tuple[int, ...], sinks: bool = True, accumulate: bool = False) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(3, 6, 9, 8, generator=generator, requires_grad=True)
        self.weight = torch.randn(weight_shape, generator=generator, requires_grad=True)
        self.bias = torch.randn(weight_shape[0], generator=generator, requires_grad=True)
        self.written: list[str] = []
        view = torch.full(weight_shape, 2.0).contiguous(memory_format=LAST)
        self.views = {"weight": view, "bias": torch.full(weight_shape[:1], 2.0)}
        for name, target in self.views.items() if sinks else ():
            note = lambda name=name: self.written.append(name)  # noqa: E731
            getattr(self, name).gradient_sink = GradientSink(target, accumulate, note)

    def expected(self, window: ConvolutionWindow) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Output, and gradients of sum(y^2) / 2, in double precision."""
        leaves = {name: getattr(self, name).detach().double().requires_grad_() for name in ("x", "weight", "bias")}
        w = window
        x, weight, bias = leaves.values()
        y = F.conv2d(x, weight, bias, w.stride, w.padding, w.dilation, w.groups)
        (y.square().sum() / 2).backward()
        return y.detach(), {name: leaf.grad for name, leaf in leaves.items()}


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_gradients_are_written_into_the_sinks(name: str, accumulate: bool) -> None:
    shape, window = WINDOWS[name]
    bench = Bench(shape, accumulate=accumulate)
    y = convolution(bench.x, bench.weight, bench.bias, window)
    assert y.is_contiguous(memory_format=LAST)
    (y.square().sum() / 2).backward()
    expected, gradients = bench.expected(window)
    assert relative(y.detach(), expected) < 1e-6
    assert relative(bench.x.grad, gradients["x"]) < 1e-6
    for parameter in ("weight", "bias"):
        assert getattr(bench, parameter).grad is None
        assert relative(bench.views[parameter] - (2 if accumulate else 0), gradients[parameter]) < 1e-5
    assert sorted(bench.written) == ["bias", "weight"]


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_in_bfloat16(name: str, sinks: bool) -> None:
    shape, window = WINDOWS[name]
    bench = Bench(shape, sinks)
    use_half([bench.weight, bench.bias])
    y = convolution(bench.x, bench.weight, bench.bias, window)
    assert y.dtype == torch.bfloat16
    (y.float().square().sum() / 2).backward()
    expected, gradients = bench.expected(window)
    assert 0 < relative(y.detach(), expected) < 1e-2
    found = bench.views if sinks else {name: getattr(bench, name).grad for name in ("weight", "bias")}
    for parameter, gradient in {**found, "x": bench.x.grad}.items():
        assert gradient.dtype == torch.float32
        assert 0 < relative(gradient, gradients[parameter]) < 2e-2


def test_an_output_may_be_overwritten_in_place() -> None:
    """As a ReLU in place does: no view of anything."""
    for shape, window in WINDOWS.values():
        bench = Bench(shape)
        y = convolution(bench.x, bench.weight, bench.bias, window).relu_()
        y.sum().backward()
        assert sorted(bench.written) == ["bias", "weight"]


def test_what_needs_no_gradient_gets_none() -> None:
    for shape, window in WINDOWS.values():
        bench = Bench(shape)
        bench.weight.requires_grad_(False)
        convolution(bench.x.detach(), bench.weight, bench.bias, window).sum().backward()
        assert bench.written == ["bias"]
        assert bench.x.grad is None
        assert (bench.views["weight"] == 2).all()


def test_without_bias() -> None:
    for shape, window in WINDOWS.values():
        bench = Bench(shape)
        convolution(bench.x, bench.weight, None, window).sum().backward()
        assert bench.written == ["weight"]


@pytest.mark.parametrize(("width", "kernel_width"), [(3, 2), (5, 5)])
def test_one_channel_makes_images_one_pixel_wide(width: int, kernel_width: int) -> None:
    """oneDNN on several threads is wrong here, by what lies behind a weight whose strides are channels-last."""
    x, weight = torch.randn(2, 1, 12, width), torch.randn(8, 3, kernel_width, 1).permute(0, 3, 1, 2)
    window, threads = ConvolutionWindow(stride=(1, 2)), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        freed = [torch.full((size,), 1e12) for size in (16, 32, 64, 128, 256, 512) for _ in range(8)]
        del freed
        ours = convolution(x, weight, None, window)
    finally:
        torch.set_num_threads(threads)
    exact = convolution(x.double(), weight.double(), None, window)
    torch.testing.assert_close(ours, exact.float())
