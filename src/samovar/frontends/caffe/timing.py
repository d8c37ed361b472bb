"""How long each layer of a net takes, forward and backward, as Caffe's `time` measures it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from samovar.core.buffer import FlatBuffer, StagedBuffer
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.wiring import Step
from samovar.model.direct import GradientSink
from samovar.model.model import layout_of

Tensors = dict[str, torch.Tensor]


@dataclass(slots=True)
class LayerSeconds:
    """Seconds of one layer, of all passes together."""

    name: str
    type: str
    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass(slots=True)
class NetSeconds:
    """The layers in file order; `passes_s` are whole forward and backward passes, one by one."""

    layers: list[LayerSeconds]
    passes_s: list[float] = field(default_factory=list)

    @property
    def forward_s(self) -> float:
        return sum(layer.forward_s for layer in self.layers)

    @property
    def backward_s(self) -> float:
        return sum(layer.backward_s for layer in self.layers)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one layer took and gave: `leaves` are its bottoms, cut off from the layers before."""

    step: Step
    leaves: list[torch.Tensor]
    tops: tuple[torch.Tensor, ...]


class NetTimer:
    """Times passes of `net`, whose parameters are laid out as training lays them out.

    Each layer runs on bottoms without history, and its own backward is run by itself, so that its time is its own;
    gradients are the right ones where the net has a loss, else ones. A bottom gets a gradient where training would
    compute one. `computed` waits until a device is done with what it was given.
    """

    def __init__(self, net: CaffeNet, computed: Callable[[], None] = lambda: None) -> None:
        self._net = net
        self._computed = computed
        self._parameters = [info.parameter for info in net.parameter_infos]
        _lay_out(net)
        self.seconds = NetSeconds([LayerSeconds(step.layer.spec.name, step.layer.spec.type) for step in net.steps])

    def warm_up(self, batch: Mapping[str, torch.Tensor]) -> float | None:
        """One pass that does not count; the loss, None for a net without one."""
        loss = self._net(batch).loss
        passes = self.seconds
        self.seconds = NetSeconds([LayerSeconds("", "") for _ in passes.layers])
        self.run(batch)
        self.seconds = passes
        return None if loss is None else float(loss.detach())

    def run(self, batch: Mapping[str, torch.Tensor]) -> None:
        """One pass forward and backward, added to `seconds`."""
        for parameter in self._parameters:
            parameter.grad = None
        before_s = self.seconds.forward_s + self.seconds.backward_s
        self._backward(self._forward(batch))
        self.seconds.passes_s.append(self.seconds.forward_s + self.seconds.backward_s - before_s)

    def _forward(self, batch: Mapping[str, torch.Tensor]) -> list[_Turn]:
        blobs: Tensors = self._net.inputs(batch)
        turns = []
        for step, seconds in zip(self._net.steps, self.seconds.layers, strict=True):
            leaves = [_cut(blobs[name], stop) for name, stop in _bottoms_of(step)]
            given = [_writable(leaf) if step.layer.overwrites_bottom else leaf for leaf in leaves]
            started_s = self._now_s()
            tops = step.layer.tops(*(step.layer.taken(bottom) for bottom in given))
            seconds.forward_s += self._now_s() - started_s
            blobs.update(zip(step.tops, tops, strict=True))
            turns.append(_Turn(step, leaves, tops))
        return turns

    def _backward(self, turns: list[_Turn]) -> None:
        gradients: Tensors = {}
        for turn, seconds in reversed(list(zip(turns, self.seconds.layers, strict=True))):
            weights = dict(turn.step.loss_weights)
            pairs = []
            for name, top in zip(turn.step.tops, turn.tops, strict=True):
                gradient = gradients.pop(name, None)
                if name in weights:
                    gradient = torch.full_like(top, weights[name])
                if top.requires_grad:
                    pairs.append((top, torch.ones_like(top) if gradient is None else gradient))
            if pairs:
                started_s = self._now_s()
                torch.autograd.backward([top for top, _ in pairs], [gradient for _, gradient in pairs])
                seconds.backward_s += self._now_s() - started_s
            for name, leaf in zip(turn.step.bottoms, turn.leaves, strict=True):
                if leaf.grad is not None:
                    gradients[name] = gradients[name] + leaf.grad if name in gradients else leaf.grad

    def _now_s(self) -> float:
        self._computed()
        return time.perf_counter()


class _Entry(torch.autograd.Function):
    """A copy that its layer may overwrite; its backward costs nothing."""

    @staticmethod
    def forward(_ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return leaf.clone()

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


def _writable(leaf: torch.Tensor) -> torch.Tensor:
    copy: torch.Tensor = _Entry.apply(leaf)  # type: ignore[no-untyped-call]
    return copy


def _bottoms_of(step: Step) -> list[tuple[str, bool]]:
    """Each bottom, and whether its gradient stops here."""
    detached = step.detached or (False,) * len(step.bottoms)
    return list(zip(step.bottoms, detached, strict=True))


def _cut(blob: torch.Tensor, stop: bool) -> torch.Tensor:
    """The blob without its history."""
    return blob.detach().requires_grad_(blob.requires_grad and not stop)


def _lay_out(net: CaffeNet) -> None:
    """Put the parameters into flat buffers, where layers that can write their gradients themselves."""
    parameters = {info.name: info.parameter for info in net.parameter_infos}
    layout = layout_of(parameters)
    weights, gradients = (StagedBuffer(FlatBuffer.zeros(layout), net.device).near for _ in range(2))
    for name, parameter in parameters.items():
        view = weights.view(name)
        view.copy_(parameter.data)
        parameter.data = view
        parameter.gradient_sink = GradientSink(  # type: ignore[attr-defined]
            view=gradients.view(name), accumulate=False, written=lambda: None
        )
