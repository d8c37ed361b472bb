"""The net's parameters: made with their fillers, shared by name, listed with their multipliers.

`Footprint` counts the memory that a net needs from its shapes, before any of its tensors exists.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from samovar.core.host import address_space_left, available_bytes
from samovar.formats.caffe.schema import Message, message_class
from samovar.frontends.caffe.spec import LayerSpec, Phase, Shape, checked, text

_VALUE_BYTES = 4
# Their tops are views of their bottoms.
_VIEWS = ("Flatten", "Reshape", "Slice", "Split")


@dataclass(frozen=True, slots=True)
class Room:
    """The processes that share the memory: `processes` build the same net at once, with `blobs` sets of blobs in all.
    Blobs of half precision are half a set; with 0 only parameters count."""

    processes: int = 1
    blobs: float = 1.0


class Footprint:
    """Adds up the least memory that a net needs; raises InputError, naming the layer, if less is free.

    In training: weights, their gradients and every blob, because backward needs nearly all. Else weights and the
    largest blob.
    """

    def __init__(self, phase: Phase, room: Room) -> None:
        self._is_training = phase == "TRAIN"
        self._room = room
        self._num_weights = 0
        self._num_values = 0
        self._free_bytes = _free_bytes(room.processes)

    def add_parameter(self, spec: LayerSpec, index: int, shape: Shape) -> None:
        self._num_weights += math.prod(shape)
        self._check(spec, f"parameter {index} of shape {text(shape)}")

    def add_top(self, spec: LayerSpec, top: str, shape: Shape) -> None:
        """Count a blob that does not overwrite another one."""
        if spec.type in _VIEWS:
            return
        size = math.prod(shape)
        self._num_values = self._num_values + size if self._is_training else max(self._num_values, size)
        self._check(spec, f"top '{top}' of shape {text(shape)}")

    @property
    def needed_bytes(self) -> int:
        """By all processes."""
        weights = self._num_weights * (2 if self._is_training else 1) * self._room.processes
        return math.ceil(_VALUE_BYTES * (weights + self._num_values * self._room.blobs))

    def _check(self, spec: LayerSpec, what: str) -> None:
        if self._free_bytes is None or self.needed_bytes <= self._free_bytes:
            return
        kinds = "weights, gradients and blobs" if self._is_training else "weights and blobs"
        count = self._room.processes
        whose = "the net needs" if count == 1 else f"the nets of {count} workers need"
        raise spec.error(
            f"with {what} {whose} at least {self.needed_bytes >> 20:,} MiB ({kinds}), {self._free_bytes >> 20:,} MiB "
            "are free; make the layer or the batch smaller" + (", or give fewer workers" if count > 1 else "")
        )


def _free_bytes(processes: int) -> int | None:
    """The lesser of the machine's free memory and the processes' limits of address space."""
    machine, own = available_bytes(), address_space_left()
    limits = [machine, None if own is None else own * processes]
    return min((value for value in limits if value is not None), default=None)


_ParamSpec = message_class("ParamSpec")
_PERMISSIVE = 1  # ParamSpec.DimCheckMode


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """Parameter `index` of layer `layer`; its name is "layer/index".

    `lr_mult` and `decay_mult` multiply the solver's learning rate and weight decay; with `lr_mult` 0 the
    parameter requires no gradient. A parameter that several layers share is listed under the first of them.
    `is_statistic`: forward itself updates it in training (BatchNorm), so it differs between workers that see
    different samples. No solver changes it.
    """

    name: str
    layer: str
    index: int
    parameter: nn.Parameter
    lr_mult: float
    decay_mult: float
    is_statistic: bool = False


@dataclass(frozen=True, slots=True)
class Filling:
    """The start of a parameter: `value`, or the FillerParameter at `field` of the layer's message, or `default`."""

    field: tuple[str, ...] = ()
    default: float = 0.0
    value: torch.Tensor | None = None

    def filler(self, spec: LayerSpec) -> Message | None:
        """The FillerParameter; None if the prototxt has none."""
        message = spec.message
        for part in self.field:
            if not message.HasField(part):
                return None
            message = getattr(message, part)
        return message if self.field else None


ZEROS = Filling()


@dataclass(slots=True)
class _Owned:
    layer: str
    index: int
    parameter: nn.Parameter
    param: Message  # our own copy of ParamSpec
    is_statistic: bool
    num_uses: int = 1

    @property
    def name(self) -> str:
        return f"{self.layer}/{self.index}"


class ParameterStore:
    """Makes the parameters of one net, in file order; their values come with `fill`, when all shapes are known."""

    def __init__(self, seed: int, footprint: Footprint) -> None:
        self.seed = seed
        self._footprint = footprint
        self._made: list[_Owned] = []
        self._fillings: list[Callable[[], None]] = []
        self._by_share_name: dict[str, _Owned] = {}

    def infos(self) -> tuple[ParameterInfo, ...]:
        return tuple(
            ParameterInfo(o.name, o.layer, o.index, o.parameter, o.param.lr_mult, o.param.decay_mult, o.is_statistic)
            for o in self._made
        )

    def shared_names(self) -> frozenset[str]:
        """Parameters that several layers use: their gradient is a sum over these layers."""
        return frozenset(owned.name for owned in self._made if owned.num_uses > 1)

    def make(
        self, spec: LayerSpec, index: int, shape: Shape, filler: Filling, is_statistic: bool = False
    ) -> tuple[str, nn.Parameter]:
        """Name and parameter `index` of the layer, which `filler` fills later.

        A parameter that the prototxt shares by name is that of the first such layer; with `share_mode: PERMISSIVE` it
        may have another shape of the same size. A 4-D weight is channels-last in memory: convolutions run faster on it
        (LeNet: 1.6 times). Raises InputError for a shape or multipliers that contradict the owner's.
        """
        param = _ParamSpec()
        if index < len(spec.message.param):
            param.CopyFrom(spec.message.param[index])
        if not (math.isfinite(param.lr_mult) and math.isfinite(param.decay_mult)):
            raise spec.error("lr_mult and decay_mult must be finite numbers", "param")
        if is_statistic:
            _freeze(spec, param)
        owned = self._by_share_name.get(param.name)
        if owned is not None:
            _merge(spec, owned, param, shape)
        else:
            owned = _Owned(spec.name, index, self._placed(spec, index, shape, filler), param, is_statistic)
            self._made.append(owned)
            if param.name:
                self._by_share_name[param.name] = owned
        owned.parameter.requires_grad_(owned.param.lr_mult != 0)
        return owned.name, owned.parameter

    def fill(self) -> None:
        for filling in self._fillings:
            filling()
        self._fillings.clear()

    def _placed(self, spec: LayerSpec, index: int, shape: Shape, filler: Filling) -> nn.Parameter:
        """A parameter of this shape that takes no memory yet, unless its values are given."""
        checked(spec, shape, f"parameter {index}")
        self._footprint.add_parameter(spec, index, shape)
        if filler.value is not None:
            return nn.Parameter(_laid_out(filler.value))
        parameter = nn.Parameter(torch.zeros(()).expand(shape))
        self._fillings.append(partial(_fill, parameter, spec, index, filler, self.seed))
        return parameter


def _fill(parameter: nn.Parameter, spec: LayerSpec, index: int, filling: Filling, seed: int) -> None:
    """A filler draws in C order from its own generator, so values do not depend on the order of layers or of memory.
    Raises InputError for unknown fillers and settings out of range."""
    shape, filler = tuple(parameter.shape), filling.filler(spec)
    if filler is None:
        values = torch.full(shape, filling.default)
    else:
        check_filler(spec, filler, shape, *filling.field)
        values = _FILLERS[filler.type](filler, shape, _seeded(f"{seed} {spec.name}/{index}"))
    parameter.data = _laid_out(values)


def _laid_out(values: torch.Tensor) -> torch.Tensor:
    return values.to(memory_format=torch.channels_last) if values.dim() == 4 else values


def _freeze(spec: LayerSpec, param: Message) -> None:
    if param.HasField("lr_mult") and param.lr_mult != 0:
        raise spec.error(
            f"lr_mult: {param.lr_mult} for a running statistic, which no solver may change; write lr_mult: 0", "param"
        )
    param.lr_mult, param.decay_mult = 0, 0


def _merge(spec: LayerSpec, owned: _Owned, param: Message, shape: Shape) -> None:
    where = f"parameter '{param.name}' is shared with layer '{owned.layer}'"
    owner_shape = tuple(owned.parameter.shape)
    is_permissive = param.share_mode == _PERMISSIVE
    if owner_shape != shape and not (is_permissive and math.prod(owner_shape) == math.prod(shape)):
        advice = "have one shape, or with share_mode: PERMISSIVE as many values"
        raise spec.error(
            f"{where}, where it has shape {text(owner_shape)}, but {text(shape)} here; shared parameters must {advice}",
            "param",
        )
    for field in ("lr_mult", "decay_mult"):
        if not param.HasField(field):
            continue
        ours, theirs = getattr(param, field), getattr(owned.param, field)
        if owned.param.HasField(field) and ours != theirs:
            raise spec.error(f"{where} with {field}: {theirs}, but {field}: {ours} here", "param", field)
        setattr(owned.param, field, ours)
    owned.num_uses += 1


_FAN_IN, _FAN_OUT = 0, 1  # FillerParameter.VarianceNorm; 2 is their mean


def fill_rows(filler: Message, shape: Shape, names: Sequence[str], seed: int) -> torch.Tensor:
    """Values of `shape`; each of len(names) equal shares of the first axis draws from the generator of its own name."""
    rows = shape[0] // len(names) if shape else 1
    share = (rows, *shape[1:]) if shape else ()
    parts = [_FILLERS[filler.type](filler, share, _seeded(f"{seed} {name}")).flatten() for name in names]
    return torch.cat(parts).reshape(shape)


def check_filler(spec: LayerSpec, filler: Message, shape: Shape, *field: str) -> None:
    """Raises InputError, at the line of `field`, for fillers that are unknown or cannot fill `shape`."""
    if filler.type not in _FILLERS:
        raise spec.error(f"unknown filler '{filler.type}'; allowed are {', '.join(_FILLERS)}", *field)
    if filler.sparse != -1 and (filler.type != "gaussian" or filler.sparse < 0):
        raise spec.error(f"sparse: {filler.sparse} in a {filler.type} filler; only gaussian takes it, from 0", *field)
    settings = (filler.value, filler.min, filler.max, filler.mean, filler.std)
    is_empty = (filler.type == "uniform" and filler.min > filler.max) or (filler.type == "gaussian" and filler.std <= 0)
    if is_empty or not all(map(math.isfinite, settings)):
        raise spec.error("filler needs finite settings, min <= max and std above 0", *field)
    if filler.type == "bilinear" and (len(shape) != 4 or shape[2] != shape[3]):
        raise spec.error(f"bilinear filler needs a square 2-D kernel; the weight is {shape}", *field)
    if not shape and (filler.type in ("xavier", "msra", "positive_unitball") or filler.sparse != -1):
        allowed = "constant, gaussian without sparse, and uniform"
        raise spec.error(f"{filler.type} filler needs a weight with axes; a single value takes {allowed}", *field)


def _seeded(name: str) -> torch.Generator:
    digest = hashlib.sha256(name.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _gaussian(filler: Message, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Normal(mean, std); with `sparse` each value is kept with probability sparse / shape[0], else 0."""
    values = torch.empty(shape).normal_(filler.mean, filler.std, generator=generator)
    if filler.sparse >= 0:
        probability = min(1.0, filler.sparse / shape[0])
        values *= torch.empty(shape).bernoulli_(probability, generator=generator)
    return values


def _positive_unitball(_filler: Message, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Uniform(0, 1), each row (first axis) divided by its sum."""
    values = torch.empty(shape).uniform_(0, 1, generator=generator).view(shape[0], -1)
    return (values / values.sum(1, keepdim=True)).view(shape)


def _xavier(filler: Message, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Uniform(-s, s), s = sqrt(3 / fan): variance 1 / fan (Glorot and Bengio 2010)."""
    bound = math.sqrt(3.0 / _fan(filler, shape))
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def _msra(filler: Message, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Normal(0, sqrt(2 / fan)) (He et al. 2015)."""
    return torch.empty(shape).normal_(0, math.sqrt(2.0 / _fan(filler, shape)), generator=generator)


def _bilinear(_filler: Message, shape: Shape, _generator: torch.Generator) -> torch.Tensor:
    """The kernel of bilinear interpolation in every channel: (1 - |x/f - c|)(1 - |y/f - c|)."""
    size = shape[3]
    factor = math.ceil(size / 2)
    center = (size - 1) / (2.0 * factor)
    line = 1 - (torch.arange(size, dtype=torch.float32) / factor - center).abs()
    return (line[:, None] * line[None, :]).expand(shape).clone()


def _fan(filler: Message, shape: Shape) -> float:
    count = math.prod(shape)
    fan_in = count / shape[0]
    fan_out = count / shape[1] if len(shape) > 1 else count
    if filler.variance_norm == _FAN_IN:
        return fan_in
    return fan_out if filler.variance_norm == _FAN_OUT else (fan_in + fan_out) / 2


_FILLERS: dict[str, Callable[[Message, Shape, torch.Generator], torch.Tensor]] = {
    "bilinear": _bilinear,
    "constant": lambda filler, shape, _generator: torch.full(shape, filler.value),
    "gaussian": _gaussian,
    "msra": _msra,
    "positive_unitball": _positive_unitball,
    "uniform": lambda filler, shape, generator: torch.empty(shape).uniform_(
        filler.min, filler.max, generator=generator
    ),
    "xavier": _xavier,
}
