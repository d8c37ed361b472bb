"""A model that computes in bfloat16 keeps float32 weights and gives float32 gradients."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from samovar.core.buffer import FlatBuffer
from samovar.core.device import BF16, FP32
from samovar.core.layout import Bucket
from samovar.model.direct import ConvolutionWindow, convolution, linear
from samovar.model.half import NetOutput, half_of, precision_warnings
from samovar.model.model import Model, layout_of

Batch = dict[str, torch.Tensor]


class Net(nn.Module):
    """A convolution and two inner products, the second not learned; `seen` are the types they computed in."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.fc1 = nn.Linear(8 * 16, 10)
        self.fc2 = nn.Linear(10, 4).requires_grad_(False)
        self.seen: list[torch.dtype] = []

    def forward(self, batch: Batch) -> NetOutput:
        self.conv(batch["data"][:0])  # its hooks, as a layer that is called has them
        x = torch.relu(convolution(batch["data"], self.conv.weight, self.conv.bias, ConvolutionWindow()))
        self.fc1(x.new_zeros(0, 128, dtype=torch.float32))
        x = linear(x.reshape(len(x), -1), self.fc1.weight, self.fc1.bias)
        y = linear(x, self.fc2.weight, self.fc2.bias)
        self.seen = [x.dtype, y.dtype]
        loss = F.cross_entropy(y.float(), batch["label"])
        return NetOutput(loss, {"loss": loss.detach()})


def make_batch(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    data, label = torch.randn(32, 3, 6, 6, generator=generator), torch.randint(0, 4, (32,), generator=generator)
    return {"data": data, "label": label}


def ignore(_bucket: Bucket) -> None:
    """No hook."""


class Rig:
    def __init__(self, precision: str, bucket_size_bytes: int | None = None) -> None:
        torch.manual_seed(3)
        self.net = Net()
        parameters = dict(self.net.named_parameters())
        layout = layout_of(parameters)
        self.weights, self.gradients = FlatBuffer.zeros(layout), FlatBuffer.zeros(layout)
        buckets = layout.buckets(bucket_size_bytes)
        self.model = Model(self.net, parameters, self.weights, self.gradients, buckets, precision)

    def step(self, batch: Batch, first: bool = True) -> float:
        loss = self.model.forward_backward(
            batch, loss_scale=1.0, first_part=first, last_part=True, before_forward=ignore, gradient_final=ignore
        )
        return float(loss)


@pytest.mark.parametrize("bucket_size_bytes", [None, 1])
def test_gradients_are_close_and_float32(bucket_size_bytes: int | None) -> None:
    half, full = Rig(BF16, bucket_size_bytes), Rig(FP32)
    start = half.weights.array_N.copy()
    for first in (True, False):  # the second part adds to what the first one left
        losses = half.step(make_batch(int(first)), first), full.step(make_batch(int(first)), first)
        assert losses[0] == pytest.approx(losses[1], rel=2e-3)
    assert half.net.seen == [torch.bfloat16] * 2
    assert full.net.seen == [torch.float32] * 2
    for name in ("conv.weight", "conv.bias", "fc1.weight", "fc1.bias"):
        ours, theirs = half.gradients.logical(name), full.gradients.logical(name)
        error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
        assert 0 < error < 4e-2, f"{name}: {error:.2g}"  # some values fall to the other side of the ReLU
    assert np.array_equal(half.weights.array_N, start), "the master copy is the solver's"


@pytest.mark.parametrize("bucket_size_bytes", [None, 1])
def test_a_step_computes_with_the_weights_of_its_start(bucket_size_bytes: int | None) -> None:
    rig, anew = Rig(BF16, bucket_size_bytes), Rig(BF16)
    rig.step(make_batch())
    for each in (rig, anew):
        each.weights.array_N *= 1.5  # also what is not learned
    assert rig.step(make_batch()) == anew.step(make_batch())
    assert np.array_equal(rig.gradients.logical("conv.weight"), anew.gradients.logical("conv.weight"))


def test_weights_may_arrive_right_before_their_first_layer() -> None:
    """As with an exchange behind the forward pass."""
    rig, anew = Rig(BF16, 1), Rig(BF16)
    anew.weights.array_N *= 1.5

    def arrive(bucket: Bucket) -> None:
        rig.weights.array_N[bucket.start : bucket.stop] *= 1.5

    for name in ("fc2.weight", "fc2.bias"):  # in no bucket
        rig.weights.view(name).mul_(1.5)
    rig.model.forward_backward(
        make_batch(), loss_scale=1.0, first_part=True, last_part=True, before_forward=arrive, gradient_final=ignore
    )
    anew.step(make_batch())
    assert np.array_equal(rig.gradients.logical("conv.weight"), anew.gradients.logical("conv.weight"))


def test_outside_of_a_step_the_parameters_themselves_count() -> None:
    rig = Rig(BF16)
    rig.step(make_batch())
    assert all(half_of(parameter) is None for parameter in rig.net.parameters())
    rig.net(make_batch())
    assert rig.net.seen == [torch.float32] * 2


def test_warnings_only_where_the_instructions_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert precision_warnings(FP32) == ()
    for capabilities, is_slow in (({"avx512_bf16": True}, False), ({"amx_bf16": True}, False), ({"avx2": True}, True)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=capabilities: found, raising=False)
        assert bool(precision_warnings(BF16)) == is_slow
