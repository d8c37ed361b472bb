"""Forward and backward on flat buffers, and the moment at which each bucket's gradient is final."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch
from torch import nn

from samovar.core.buffer import FlatBuffer, StagedBuffer
from samovar.core.device import BF16, FP32
from samovar.core.layout import Bucket, Layout, ParameterSpec
from samovar.core.stateful import State, StateValue
from samovar.model.direct import FactorPlaces, GradientSink, put
from samovar.model.half import HalfWeights, NetOutput

BucketHook = Callable[[Bucket], None]


class GradientWatch(Protocol):
    """Sees each parameter's gradient as soon as it is computed, before its exchange, and the end of a backward pass."""

    def gradient(self, name: str, values: torch.Tensor) -> None: ...
    def backward_ended(self) -> None: ...


def _ignore(_bucket: Bucket) -> None:
    """Do nothing: the hook of a part whose gradients are not final."""


def _nothing() -> None:
    """Do nothing: the default hook."""


def layout_of(parameters: Mapping[str, nn.Parameter]) -> Layout:
    """The layout of parameters in forward order. It stores them in reverse, the order in which backward finishes them.

    Four-dimensional weights are channels-last, because torch's convolutions are fastest so on a CPU.
    """
    backward_order = reversed(list(parameters.items()))
    return Layout.pack(
        ParameterSpec(name, tuple(p.shape), channels_last=p.dim() == 4, is_learned=p.requires_grad)
        for name, p in backward_order
    )


class Model:
    """A net whose parameters are views into `weights`, and whose gradients end up in `gradients`.

    Construction copies the module's current weights into `weights`. A layer writes its gradient into `gradients`
    (`samovar.model.direct`), or it is copied from autograd. With `precision` bf16, layers that multiply matrices
    compute in it, with weights rounded in each step.

    With a `device` that the buffers are not on, parameters are views into a copy of `weights` there, which is refreshed
    bucket by bucket. A bucket's gradient is copied into `gradients` when it is final. Else there are no copies.
    """

    def __init__(
        self,
        net: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        weights: FlatBuffer,
        gradients: FlatBuffer,
        buckets: tuple[Bucket, ...],
        precision: str = FP32,
        device: torch.device | None = None,
    ) -> None:
        self.net = net
        self.weights = weights
        self.watch: GradientWatch | None = None
        self.factors: Mapping[str, FactorPlaces] = {}  # of gradients that a step has in one part
        apart = None if weights.is_near else device
        self._weights = StagedBuffer(weights, apart)
        self._gradients = StagedBuffer(gradients, apart)
        self._buckets = buckets
        # What lies behind the buckets is not learned, but forward may change it (BatchNorm's sums).
        self._tail = max((bucket.stop for bucket in buckets), default=0)
        self._parameters = dict(parameters)
        self._bucket_of = {e.spec.name: bucket for bucket in buckets for e in bucket.entries}
        self._unwritten: dict[int, set[str]] = {}
        self._announced: set[int] = set()
        self._before_forward: BucketHook = _ignore
        self._gradient_final: BucketHook = _ignore
        for name, parameter in self._parameters.items():
            self._adopt(name, parameter)
        self._weights.store()
        self._half = HalfWeights(self._weights.near) if precision == BF16 else None
        self._hook_forward()

    def forward_backward(
        self,
        batch: Mapping[str, torch.Tensor],
        *,
        loss_scale: float,
        first_part: bool,
        last_part: bool,
        before_forward: BucketHook,
        gradient_final: BucketHook,
        forward_done: Callable[[], None] = _nothing,
    ) -> torch.Tensor:
        """Compute gradients of loss_scale * loss. The first part of a step stores them, later parts add to them.

        `before_forward(bucket)` runs before the bucket's first layer of the step. `gradient_final(bucket)` runs when
        the last part has completed its gradient; buckets without a gradient get zero. `forward_done` runs between the
        passes. Returns the loss, not scaled, where the net computes.
        """
        if first_part:
            self._announced.clear()
            self._weights.fetch(self._tail)
        self._before_forward = before_forward
        self._gradient_final = self._shared(gradient_final) if last_part else _ignore
        self._unwritten = {b.index: {e.spec.name for e in b.entries} for b in self._buckets}
        for parameter in self._parameters.values():
            parameter.gradient_sink.accumulate = not first_part  # type: ignore[attr-defined]
        for name, factors in self.factors.items():
            factors.expect_whole()
            # A watch sees gradients before their exchange.
            self._parameters[name].gradient_sink.factors = None if self.watch else factors  # type: ignore[attr-defined]
        output = self._forward(batch)
        forward_done()
        assert output.loss is not None, "the net has no loss to train on"
        if output.loss.requires_grad:  # not backward(scale): for a given gradient, torch first imports sympy, in 0.3 s
            (output.loss * loss_scale).backward()  # type: ignore[no-untyped-call]
        if self.watch is not None:
            self.watch.backward_ended()
        self._finish_unreached(first_part)
        if last_part:
            self._weights.store(self._tail)
        return output.loss.detach()

    @contextmanager
    def outside_of_a_step(self) -> Iterator[None]:
        """A context in which nets compute with all current `weights`."""
        self._weights.fetch()
        yield
        self._weights.store(self._tail)

    def _forward(self, batch: Mapping[str, torch.Tensor]) -> NetOutput:
        if self._half is None:
            return self._run(batch)
        self._half.refresh_from(self._tail)
        with self._half.lent(self._parameters):  # a test pass computes with the parameters themselves
            return self._run(batch)

    def _run(self, batch: Mapping[str, torch.Tensor]) -> NetOutput:
        output: NetOutput = self.net(batch)
        return output

    def state_dict(self) -> State:
        return self.weights.state_dict()

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        self.weights.load_state_dict(state, "weights")

    def _adopt(self, name: str, parameter: nn.Parameter) -> None:
        view = self._weights.near.view(name)
        view.copy_(parameter.data)
        parameter.data = view
        parameter.gradient_sink = GradientSink(  # type: ignore[attr-defined]
            view=self._gradients.near.view(name), accumulate=False, written=partial(self._gradient_written, name)
        )
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_take_gradient)  # type: ignore[no-untyped-call]

    def _hook_forward(self) -> None:
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        for module, is_whole in _layers(self.net):
            owned = [names[id(p)] for p in module.parameters(recurse=is_whole) if id(p) in names]
            buckets = {self._bucket_of[name].index: self._bucket_of[name] for name in owned if name in self._bucket_of}
            if buckets:
                module.register_forward_pre_hook(partial(self._announce, tuple(buckets.values())))

    def _announce(self, buckets: tuple[Bucket, ...], _module: nn.Module, _inputs: object) -> None:
        for bucket in buckets:
            if bucket.index not in self._announced:
                self._announced.add(bucket.index)
                self._before_forward(bucket)
                self._weights.fetch(bucket.start, bucket.stop)
                if self._half is not None:
                    self._half.refresh(bucket)

    def _gradient_written(self, name: str) -> None:
        if self.watch is not None:
            self.watch.gradient(name, self._gradients.near.view(name))
        bucket = self._bucket_of[name]
        unwritten = self._unwritten[bucket.index]
        unwritten.discard(name)
        if not unwritten:
            self._gradient_final(bucket)

    def _shared(self, gradient_final: BucketHook) -> BucketHook:
        """The hook, called when a bucket's gradient is in shared memory."""

        def shared(bucket: Bucket) -> None:
            self._gradients.store(bucket.start, bucket.stop)
            gradient_final(bucket)

        return shared if self._gradients.is_apart else gradient_final

    def _finish_unreached(self, first_part: bool) -> None:
        for bucket in self._buckets:
            for name in tuple(self._unwritten[bucket.index]):
                if first_part:
                    self._gradients.near.view(name).zero_()
                self._gradient_written(name)


def _layers(net: nn.Module) -> Iterator[tuple[nn.Module, bool]]:
    """The modules that a forward pass calls, and whether their inner modules may be used without a call."""
    yield net, False
    for child in net.children():
        if isinstance(child, nn.ModuleList):
            yield from _layers(child)
        else:
            yield child, True


def _take_gradient(parameter: torch.Tensor) -> None:
    """Move autograd's gradient into the flat buffer, and free it."""
    sink: GradientSink = parameter.gradient_sink  # type: ignore[attr-defined]
    gradient = parameter.grad
    if gradient is None:  # the layer wrote it into the sink itself
        return
    put(sink.view, gradient, sink.accumulate)
    parameter.grad = None
    sink.written()
