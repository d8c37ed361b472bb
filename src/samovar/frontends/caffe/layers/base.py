"""The base of all layer types."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import ClassVar

import torch
from torch import nn
from torch.func import functional_call

from samovar.core.buffer import sent
from samovar.frontends.caffe.parameters import Filling, ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape

PLAIN, KEPT, CHANNELS_LAST = "plain", "kept", "channels last"
_RANGE = "known_range"  # attribute of whole numbers on a device: the least and the most


def on_device(blob: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The host's `blob` on `device`; of whole numbers the range is known then. Waits for nothing."""
    there = sent(blob, device)
    if not blob.is_floating_point() and blob.numel():
        setattr(there, _RANGE, (int(blob.min()), int(blob.max())))
    return there


def integers(values: torch.Tensor, *shape: int) -> torch.Tensor:
    """`values` as int64 of `shape`, whose range stays known."""
    result = values.long().reshape(shape)
    if hasattr(values, _RANGE):
        setattr(result, _RANGE, getattr(values, _RANGE))
    return result


class Layer(nn.Module):
    """A layer: checks its settings and the shapes of its bottoms when built, computes its tops when called.

    A subclass has `build` and `forward(*bottoms)`, which returns a tuple of its tops. `build` sets `top_shapes` (by
    default those of the first bottom) and makes the parameters with `add_parameter`, in Caffe's order. Shapes are
    those of the batch the net is built for; `forward` takes any batch size.
    """

    num_bottoms: ClassVar[tuple[int, int]] = (1, 1)  # least and most
    num_tops: ClassVar[tuple[int, int]] = (1, 1)
    makes_own_top: ClassVar[bool] = False  # a loss may leave its top out of the prototxt
    default_loss_weight: ClassVar[float] = 0.0  # of the first top
    has_gradient: ClassVar[bool] = True  # its tops may count as loss
    takes_integers: ClassVar[bool] = False  # labels come as they are; other layers get them as float32
    forgets_output: ClassVar[bool] = False  # backward does not need the output, so it may be overwritten
    mixes_samples: bool = False  # what comes out for a sample depends on others of its batch
    is_uneven: bool = False  # a loss that is not a mean over samples
    is_random: bool = False  # draws in the phase that it is built for
    carried: list[torch.Tensor] | None = None  # states for the next pass; None: it keeps none
    # How images lie in memory that it takes and gives: as (N, C, H, W), as they come, or (N, H, W, C); any is right.
    memory_order: str = PLAIN
    takes_half: bool = False  # computes in bfloat16 what comes in bfloat16; other layers get it as float32
    takes_scores: ClassVar[bool] = False  # a layer with weights right before it computes in float32 in any case
    settings: ClassVar[tuple[str, ...]] = ()  # the fields of LayerParameter that this type reads, main one first

    bias: nn.Parameter | None  # of the layers that `add_bias`

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__()
        self.spec = spec
        self.top_shapes = list(bottom_shapes[:1])
        self.parameter_names: list[str] = []
        self.parameter_shapes: list[Shape] = []
        self.attribute_names: list[str] = []
        self.reshaped: dict[str, Shape] = {}  # attributes that hold another layer's array, and their shapes here
        self.statistic_names: list[str] = []  # those attributes that forward keeps up to date
        self.overwrites_bottom = False  # set by the net where the top may be written over the bottom
        self.is_shared = False  # set by the net where another layer uses these parameters too
        self._store = store
        self.build(spec, bottom_shapes)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], /) -> None:
        """Check settings and shapes, raising InputError; set `top_shapes`, make the parameters."""

    def add_parameter(self, attribute: str, shape: Shape, filler_field: str = "", default: float = 0.0) -> None:
        """Make the next parameter as `self.<attribute>`.
        Its filler is a field of the first of `settings`; without one, all values are `default`."""
        field = (self.settings[0], filler_field) if filler_field else ()
        self.add(attribute, shape, Filling(field, default), is_statistic=False)

    def add_bias(self, shape: Shape, is_wanted: bool) -> None:
        self.register_parameter("bias", None)
        if is_wanted:
            self.add_parameter("bias", shape, "bias_filler")

    def add_statistic(self, attribute: str, shape: Shape) -> None:
        """Make the next parameter as `self.<attribute>`: zeros, which forward updates, not learned."""
        self.add(attribute, shape, Filling(), is_statistic=True)

    def add(self, attribute: str, shape: Shape, filling: Filling, is_statistic: bool = False) -> None:
        """Make the next parameter as `self.<attribute>`, which may be one of a submodule's."""
        index = len(self.parameter_names)
        name, parameter = self._store.make(self.spec, index, shape, filling, is_statistic)
        self._set_parameter(attribute, parameter)
        if tuple(parameter.shape) != shape:
            self.reshaped[attribute] = shape
        self.parameter_names.append(name)
        self.parameter_shapes.append(shape)
        self.attribute_names.append(attribute)
        if is_statistic:
            self.statistic_names.append(attribute)

    def at_numbers(
        self, numbers: torch.Tensor, count: int, look_up: Callable[[], torch.Tensor], refusal: str
    ) -> torch.Tensor:
        """The result of `look_up` for numbers of 0 .. count - 1; InputError, by `refusal`, for any other number.

        torch finds such a number itself, but on a GPU it ends the process. There this checks the numbers first, without
        a wait for the GPU if they are a batch's (`on_device`).
        """
        if numbers.device.type != "cpu":
            self.check_numbers(numbers, count, refusal)
        try:
            return look_up()
        except (RuntimeError, IndexError):
            self.check_numbers(numbers, count, refusal)
            raise

    def check_numbers(self, numbers: torch.Tensor, count: int, refusal: str) -> None:
        """InputError, by `refusal` with {least} and {most}, if a number is not 0 .. count - 1."""
        known = getattr(numbers, _RANGE, None) if numbers.numel() else (0, 0)  # none behind a Filter that kept none
        least, most = (int(numbers.min()), int(numbers.max())) if known is None else known
        if not 0 <= least <= most < count:
            raise self.spec.error(refusal.format(least=least, most=most)) from None

    def taken(self, bottom: torch.Tensor) -> torch.Tensor:
        """The bottom as this layer takes it: float32 if it takes neither integers nor bfloat16.
        If the net was converted to bfloat16 (`net.to`), what meets parameters is bfloat16, too."""
        own = None if self.takes_integers else next(iter(self._parameters.values()), None)
        if own is not None and own.dtype == torch.bfloat16:
            return bottom.bfloat16()
        if bottom.dtype == torch.bfloat16:
            return bottom if self.takes_half else bottom.float()
        return bottom if self.takes_integers or bottom.is_floating_point() else bottom.float()

    def tops(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`self(*bottoms)`, with arrays shared from other shapes (`share_mode: PERMISSIVE`) in this layer's shapes."""
        if not self.reshaped:
            computed: tuple[torch.Tensor, ...] = self(*bottoms)
        else:
            own = {name: attrgetter(name)(self).reshape(shape) for name, shape in self.reshaped.items()}
            computed = functional_call(self, own, bottoms, tie_weights=False)
        return computed

    def caffe_parameters(self) -> list[nn.Parameter]:
        """The parameters in Caffe's order (weight, bias)."""
        return [attrgetter(attribute)(self) for attribute in self.attribute_names]

    def work_as(self, is_training: bool) -> None:
        """Compute as in training, or as in test, from now on; no effect if both are the same."""

    def use_parameters(self, parameters: Sequence[nn.Parameter]) -> None:
        """Take these instead of its own parameters, in Caffe's order."""
        for attribute, parameter in zip(self.attribute_names, parameters, strict=True):
            self._set_parameter(attribute, parameter)

    def _set_parameter(self, attribute: str, parameter: nn.Parameter) -> None:
        owner, _, name = attribute.rpartition(".")
        self.get_submodule(owner).register_parameter(name, parameter)
