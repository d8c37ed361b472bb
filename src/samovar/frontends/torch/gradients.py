"""Gradients of any module in one flat buffer, each bucket announced when backward has finished it."""

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from samovar.core.buffer import FlatTensor
from samovar.core.errors import InputError, SamovarError
from samovar.core.layout import Bucket, Layout, ParameterSpec
from samovar.frontends.torch.backward_pass import BackwardPass
from samovar.frontends.torch.factors import Factors
from samovar.frontends.torch.parameters import layout_of, require_exchangeable

# The last entry of the layout: for each parameter the number of ranks on which a gradient reached it.
REACHED = "samovar: ranks with a gradient"

BucketHook = Callable[[Bucket], None]


def gradient_layout(parameters: Mapping[str, nn.Parameter], apart: Collection[str] = ()) -> Layout:
    """The layout of gradients: those of `apart` first, and last the numbers of ranks that have each."""
    in_order = sorted(parameters, key=apart.__contains__)  # the layout reverses it
    return layout_of({name: parameters[name] for name in in_order}, ParameterSpec(REACHED, (len(parameters),)))


def gradient_buckets(
    layout: Layout, bucket_size_bytes: int | None, *, counts_apart: bool, num_apart: int = 0
) -> tuple[Bucket, ...]:
    """The buckets of a `gradient_layout`: one for each of the first `num_apart` gradients, then those of the others.

    With `counts_apart` the counts are a bucket of their own.
    """
    others = Layout(layout.learned[num_apart:], layout.num_elements).buckets(bucket_size_bytes)
    lengths = [*[1] * num_apart, *(len(bucket.entries) for bucket in others)]
    if counts_apart and lengths[-1] > 1:
        lengths[-1:] = [lengths[-1] - 1, 1]
    return layout.cut(lengths)


@dataclass(slots=True)
class _Slot:
    """A parameter, its place in the flat buffer, and its bucket.

    In this backward pass: whether the buffer has a part of the gradient, whether it has all, and how many products are
    still to come.
    """

    name: str
    parameter: nn.Parameter
    view: torch.Tensor
    bucket: Bucket
    mirrored: bool
    begun: bool = False
    written: bool = False
    num_awaited: int = 0


class FlatGradients:
    """Copies each gradient from autograd into a flat buffer, scaled on the way. `p.grad` is then a view of the buffer.

    The last backward pass before an exchange leaves `scale` times the gradient in the buffer. The sum over ranks is
    then their mean, without another pass over the buffer. Earlier passes leave gradients unscaled in `p.grad`. If the
    `factors` of a gradient are taken, autograd does not make it: it is made in the buffer, or by its exchange.

    Bytes per element and step: 4 read and 4 written, and 8 more if a gradient existed before. A gradient that is made
    in the buffer needs only the product itself.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        flat: FlatTensor,
        buckets: tuple[Bucket, ...],
        scale: float,
        factors: Factors | None = None,
    ) -> None:
        self._flat, self._start = flat, flat.tensor_N.data_ptr()
        self._factors = factors
        self._scale = scale
        self._buckets = buckets
        bucket_of = {entry.spec.name: bucket for bucket in buckets for entry in bucket.entries}
        self._slots = [
            _Slot(name, p, flat.view(name), bucket_of[name], not _can_be_gradient(flat.view(name), p))
            for name, p in parameters.items()
        ]
        self._slot_of = {slot.name: slot for slot in self._slots}
        self._reached = flat.view(REACHED)
        self._missing = [0] * len(buckets)
        self._bucket_final: BucketHook | None = None
        self._is_published = self._lacks_some = False
        self.came_late = ""  # the first parameter to whose exchanged gradient another backward pass has added
        self._hooks = [
            slot.parameter.register_post_accumulate_grad_hook(partial(self._take, slot))  # type: ignore[no-untyped-call]
            for slot in self._slots
        ]

    def backward(self, backward: BackwardPass, bucket_final: BucketHook) -> None:
        """The last backward pass before an exchange; `bucket_final` is called once for every bucket, in any order."""
        bucket_final = backward.announced(bucket_final)
        self._begin(bucket_final)
        taken = nullcontext(backward) if self._factors is None else self._factors.taken(backward, self)
        try:
            with taken as own:
                own.run()
        finally:
            self._bucket_final = None
        self._finish(bucket_final)

    def await_products(self, name: str, num_products: int) -> None:
        """In this pass the gradient is a sum of `num_products` products, and of parts from autograd if any come."""
        self._slot_of[name].num_awaited = num_products

    def add_product(self, name: str, factors: tuple[torch.Tensor, torch.Tensor] | None) -> None:
        """gradient += scale * left^T right, of left (K, m), right (K, n); None if no gradient reached the product."""
        assert self._bucket_final is not None
        slot = self._slot_of[name]
        if factors is not None:
            left, right = factors
            slot.view.addmm_(left.t(), right, beta=int(slot.begun), alpha=self._scale)
            slot.begun = True
        slot.num_awaited -= 1
        self._part_came(slot, self._bucket_final)

    def factors_complete(self, name: str) -> None:
        """Say that all factors that travel instead of this gradient have come."""
        assert self._bucket_final is not None
        self._mark_written(self._slot_of[name], self._bucket_final)

    def contribute_nothing(self, bucket_final: BucketHook) -> None:
        """Zeros in place of a backward pass, for a rank without data."""
        self._flat.tensor_N.zero_()
        self._lacks_some = True
        if self._factors is not None:
            self._factors.expect_nothing()
        for bucket in self._buckets:
            bucket_final(bucket)

    def publish(self, correction: float) -> None:
        """After the exchange: `p.grad` is `correction` times the sum; None if no rank had a gradient."""
        if correction != 1.0:
            for slot in self._slots:
                slot.view.mul_(correction)
        # What reached this rank reached one: only what did not is looked up, which waits for a device.
        counts = self._reached.tolist() if self._lacks_some else [1.0] * len(self._slots)
        for slot, reached in zip(self._slots, counts, strict=True):
            parameter = slot.parameter
            if reached == 0.0:
                parameter.grad = None
            elif slot.mirrored:
                parameter.grad = torch.empty_like(parameter, dtype=_gradient_type(parameter)).copy_(slot.view)
            else:
                parameter.grad = slot.view.detach()  # model.half() gives other memory to `grad` itself

        self._is_published = True

    def release(self) -> None:
        """Leave the parameters' gradients to autograd again."""
        for hook in self._hooks:
            hook.remove()
        for slot in self._slots:
            slot.parameter.grad = None

    def _begin(self, bucket_final: BucketHook) -> None:
        if self._flat.tensor_N.data_ptr() != self._start:
            raise SamovarError(
                "share_memory(), of the model or of a gradient, has moved the gradients, and none would be exchanged; "
                "call it before replicate()"
            )
        self._is_published, self.came_late = False, ""
        self._missing = [len(bucket.entries) for bucket in self._buckets]
        for slot in self._slots:
            slot.begun = slot.written = False
            slot.mirrored = not _can_be_gradient(slot.view, slot.parameter)
            if slot.mirrored:
                require_exchangeable(slot.name, slot.parameter)  # model.double() may have come since replicate()
            slot.num_awaited = 0
        self._bucket_final = bucket_final

    def _take(self, slot: _Slot, parameter: torch.Tensor) -> None:
        """Move a gradient of autograd into the buffer. Outside our own backward it stays where it is."""
        bucket_final = self._bucket_final
        if bucket_final is None and self._is_published:
            self.came_late = self.came_late or slot.name
        if bucket_final is None or parameter.grad is None:
            return
        if self._factors is not None and self._factors.stand_for(slot.name):
            parameter.grad = None
            return
        if slot.mirrored:  # the view is filled at the end
            return
        if slot.written and not self._missing[slot.bucket.index]:
            raise SamovarError(
                f"the gradient of {slot.name!r} came in two parts in one backward pass, the second after its exchange "
                "had begun. Give checkpoint(..., use_reentrant=False), or leave bucket_size out; between hosts give "
                "bucket_size='model' and factors='none'"
            )
        self._store(slot, parameter.grad)
        parameter.grad = None  # a second part of this gradient must come by itself
        self._part_came(slot, bucket_final)

    def _store(self, slot: _Slot, gradient: torch.Tensor) -> None:
        if gradient.layout != torch.strided:
            raise InputError(
                f"the gradient of {slot.name!r} is sparse; only dense ones are exchanged: give sparse=False"
            )
        if slot.begun:
            slot.view.add_(gradient, alpha=self._scale)
        elif gradient.data_ptr() == slot.view.data_ptr():
            slot.view.mul_(self._scale)
        elif gradient.dtype == slot.view.dtype and self._scale != 1.0:
            torch.mul(gradient, self._scale, out=slot.view)
        else:
            slot.view.copy_(gradient).mul_(self._scale)
        slot.begun = True

    def _part_came(self, slot: _Slot, bucket_final: BucketHook) -> None:
        if slot.begun and not slot.written and not slot.num_awaited:
            self._mark_written(slot, bucket_final)

    def _mark_written(self, slot: _Slot, bucket_final: BucketHook) -> None:
        slot.written = True
        index = slot.bucket.index
        self._missing[index] -= 1
        if not self._missing[index]:
            bucket_final(self._buckets[index])

    @torch.no_grad()
    def _finish(self, bucket_final: BucketHook) -> None:
        """Take gradients that no hook saw: of earlier passes, of other types, and of parameters that none reached."""
        reached = np.ones(len(self._slots), np.float32)
        for number, slot in enumerate(self._slots):
            if slot.written:
                continue
            if slot.parameter.grad is not None:
                self._store(slot, slot.parameter.grad)
            elif not slot.begun:
                slot.view.zero_()
                reached[number] = 0.0
            self._mark_written(slot, bucket_final)
        self._lacks_some = not reached.all()
        if self._lacks_some:
            self._reached.copy_(torch.from_numpy(reached))
        else:
            self._reached.fill_(1.0)
        last = self._buckets[-1]
        self._missing[last.index] -= 1
        bucket_final(last)


def _can_be_gradient(view: torch.Tensor, parameter: nn.Parameter) -> bool:
    """Whether it has the gradient's type, and the parameter's order in memory, which fused optimizers rely on."""
    strides = zip(view.shape, view.stride(), parameter.stride(), strict=True)
    return _gradient_type(parameter) == torch.float32 and all(size == 1 or a == b for size, a, b in strides)


def _gradient_type(parameter: nn.Parameter) -> torch.dtype:
    """The type that its `grad` must have; a user may choose another than the parameter's."""
    return parameter.grad_dtype or parameter.dtype
