"""Caffe's weight fillers, drawn from a generator that depends on the seed and the parameter's name only."""

import hashlib
import math
from collections.abc import Callable, Sequence

import torch

from samovar.formats.caffe.schema import Message
from samovar.frontends.caffe.spec import LayerSpec, Shape

_FAN_IN, _FAN_OUT = 0, 1  # FillerParameter.VarianceNorm; 2 is their mean


def fill(spec: LayerSpec, name: str, shape: Shape, field: tuple[str, ...], seed: int) -> torch.Tensor:
    """A float32 tensor of `shape` by the FillerParameter at `field` of the layer's message.

    A filler draws in C order from its own generator, so values do not depend on the order of layers or of memory.
    Raises InputError for unknown fillers and settings out of range.
    """
    filler = spec.message
    for part in field:
        filler = getattr(filler, part)
    check_filler(spec, filler, shape, *field)
    return _FILLERS[filler.type](filler, shape, _seeded(f"{seed} {name}"))


def fill_rows(filler: Message, shape: Shape, names: Sequence[str], seed: int) -> torch.Tensor:
    """As `fill`, but each of len(names) equal shares of the first axis draws from the generator of its own name."""
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
