"""Inner products that write their gradients where they belong."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from samovar.model.direct import GradientSink, linear


class Bench:
    """A weight and a bias, with or without sinks, and their gradients."""

    def __init__(self, seed: int, weight_sink: bool, bias_sink: bool, accumulate: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(4, 6, generator=generator, requires_grad=True)
        self.weight = torch.randn(3, 6, generator=generator, requires_grad=True)
        self.bias = torch.randn(3, generator=generator, requires_grad=True)
        self.written: list[str] = []
        self.views = {"weight": torch.full((3, 6), 2.0), "bias": torch.full((3,), 2.0)}
        for name, wanted in (("weight", weight_sink), ("bias", bias_sink)):
            if wanted:
                note = lambda name=name: self.written.append(name)  # noqa: E731
                getattr(self, name).gradient_sink = GradientSink(self.views[name], accumulate, note)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(("weight_sink", "bias_sink"), [(True, True), (True, False), (False, True), (False, False)])
def test_gradients_equal_those_of_the_plain_product(weight_sink: bool, bias_sink: bool, accumulate: bool) -> None:
    bench, plain = Bench(0, weight_sink, bias_sink, accumulate), Bench(0, False, False)
    y = linear(bench.x, bench.weight, bench.bias)
    expected = F.linear(plain.x, plain.weight, plain.bias)
    torch.testing.assert_close(y, expected)
    (y**2).sum().backward()
    (expected**2).sum().backward()
    torch.testing.assert_close(bench.x.grad, plain.x.grad)
    for name, has_sink in (("weight", weight_sink), ("bias", bias_sink)):
        gradient = getattr(plain, name).grad
        if has_sink:
            assert getattr(bench, name).grad is None
            torch.testing.assert_close(bench.views[name], gradient + (2 if accumulate else 0))
        else:
            torch.testing.assert_close(getattr(bench, name).grad, gradient)
    assert sorted(bench.written) == [name for name, has in (("bias", bias_sink), ("weight", weight_sink)) if has]


def test_the_gradient_is_in_place_when_written_is_called() -> None:
    bench = Bench(1, True, True)
    seen = {}
    for name in ("weight", "bias"):
        sink = getattr(bench, name).gradient_sink
        sink.written = lambda name=name: seen.update({name: bench.views[name].clone()})
    linear(bench.x, bench.weight, bench.bias).sum().backward()
    assert torch.equal(seen["weight"], bench.views["weight"])
    assert torch.equal(seen["bias"], torch.full((3,), 4.0))


def test_what_needs_no_gradient_gets_none() -> None:
    bench = Bench(2, True, True)
    bench.weight.requires_grad_(False)
    linear(bench.x, bench.weight, bench.bias).sum().backward()
    assert bench.written == ["bias"]
    assert (bench.views["weight"] == 2).all()
    with torch.no_grad():
        linear(bench.x, bench.weight, bench.bias)
    assert bench.written == ["bias"]


def test_without_bias_and_with_a_strided_input() -> None:
    bench, plain = Bench(3, True, False), Bench(3, False, False)
    wide = torch.randn(4, 12, generator=torch.Generator().manual_seed(9))
    linear(wide[:, ::2], bench.weight).pow(3).sum().backward()
    F.linear(wide[:, ::2], plain.weight).pow(3).sum().backward()
    np.testing.assert_allclose(bench.views["weight"], plain.weight.grad, rtol=1e-5)
