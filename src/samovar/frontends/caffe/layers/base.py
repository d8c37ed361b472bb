"""The base of all layer types, and of those that draw random numbers.

Draws depend on the seed, the layer's name and the sample alone. So a sample has the same ones on any worker, in any
batch, and in every repetition.
"""

import hashlib
from collections.abc import Callable, Sequence
from math import prod
from operator import attrgetter
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.func import functional_call

from samovar.core.buffer import sent
from samovar.frontends.caffe.parameters import ZEROS, Filling, ParameterStore
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
        self.add(attribute, shape, Filling(field, default))

    def add_bias(self, shape: Shape, is_wanted: bool) -> None:
        self.register_parameter("bias", None)
        if is_wanted:
            self.add_parameter("bias", shape, "bias_filler")

    def add(self, attribute: str, shape: Shape, filling: Filling = ZEROS, is_statistic: bool = False) -> None:
        """Make the next parameter as `self.<attribute>`, which may be one of a submodule's.
        A statistic is not learned; forward updates it."""
        index = len(self.parameter_names)
        name, parameter = self._store.make(self.spec, index, shape, filling, is_statistic)
        self._set_parameter(attribute, parameter, shape)
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
        for attribute, parameter, shape in zip(self.attribute_names, parameters, self.parameter_shapes, strict=True):
            self._set_parameter(attribute, parameter, shape)

    def _set_parameter(self, attribute: str, parameter: nn.Parameter, shape: Shape) -> None:
        owner, _, name = attribute.rpartition(".")
        self.get_submodule(owner).register_parameter(name, parameter)
        self.reshaped.pop(attribute, None)
        if tuple(parameter.shape) != shape:
            self.reshaped[attribute] = shape


Words = npt.NDArray[np.uint32]

_WORDS_PER_BLOCK = 8  # one step of Philox's counter gives four words of 64 bits


class RandomLayer(Layer):
    """A layer that draws in forward; the net sets `sample_numbers` (global counters, int64 (N,)) before each.
    A sample's counter rises over the whole run, so (seed, layer, counter) is unique for every draw of every step."""

    def build(self, spec: LayerSpec, _shapes: Sequence[Shape]) -> None:
        self.seed = self._store.seed
        digest = hashlib.sha256(f"{self.seed} {spec.name} draws".encode()).digest()
        self._key = np.frombuffer(digest[:16], "<u8").copy()
        self.is_random = True
        self.sample_numbers = torch.zeros(1, dtype=torch.int64)
        self.rows = (0, 0)  # of the batch that the net is built for, and of the present one; set with the numbers

    def numbers_for(self, shape: Shape) -> npt.NDArray[np.int64]:
        """The samples' numbers; the first one alone if samples do not divide the first axis evenly."""
        numbers = self.sample_numbers.numpy()
        return numbers[:1] if not shape or shape[0] % len(numbers) else numbers

    def words(self, shape: Shape) -> Words:
        """Random words, uint32 of `shape`, a function of `numbers_for(shape)`. Cost: 1 ns a word (Philox)."""
        numbers = self.numbers_for(shape)
        return sample_words(self._key, numbers, prod(shape) // len(numbers)).reshape(shape)

    def uniforms(self, shape: Shape, like: torch.Tensor) -> torch.Tensor:
        """Uniform on [0, 1) in steps of 2^-24, float32, on the device of `like`."""
        values = (self.words(shape) >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
        return sent(torch.from_numpy(values), like.device)


def sample_words(key: npt.NDArray[np.uint64], numbers: npt.NDArray[np.int64], count: int) -> Words:
    """uint32 (len(numbers), count): row i is a function of (key, numbers[i]) alone. Sample n owns `blocks` steps of
    Philox's counter from n * blocks on, so runs of consecutive samples are drawn at once."""
    blocks = -(-count // _WORDS_PER_BLOCK)
    rows = np.empty((len(numbers), count), np.uint32)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    for run in np.split(np.arange(len(numbers)), breaks):
        if not len(run) or not count:
            continue
        start = int(numbers[run[0]]) * blocks
        counter = np.array([start % 2**64, start >> 64, 0, 0], np.uint64)
        raw = np.random.Philox(key=key, counter=counter).random_raw(len(run) * blocks * 4)
        little = raw.astype("<u8", copy=False).view("<u4").reshape(len(run), -1)
        rows[run] = little[:, :count]
    return rows
