"""A net's profile: what each layer holds and how long it takes, for one batch on one machine."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samovar.core.errors import InputError
from samovar.core.plain import from_plain, to_plain
from samovar.report.records import READING, Timed
from samovar.report.run_folder import write_json_atomic

FORMAT = "samovar profile 1"
_FLOPS_OF_A_MULTIPLY_ADD = 2
_MOST_BYTES = 1 << 24
_MOST = 1 << 62  # of what 64 bits hold
BYTES_OF_A_FLOAT = 4


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """One layer: seconds for the profile's batch, None if they were not measured.

    `multiply_adds` are those of one forward pass over the batch, `activation_bytes` the size of its output.
    `behind_bytes` are the outputs of parts without parameters that follow, if their time counts here. `fresh_s` is the
    part of `backward_s` that gradients take because their memory is fresh at each step. `num_unlearned` are frozen, or
    statistics: they travel to a center, and backward makes no gradient of theirs.
    """

    name: str
    type: str = ""
    num_parameters: int = 0
    multiply_adds: int = 0
    activation_bytes: int = 0
    forward_s: float | None = None
    backward_s: float | None = None
    behind_bytes: int = 0
    fresh_s: float = 0.0
    num_unlearned: int = 0

    @property
    def parameter_bytes(self) -> int:
        return BYTES_OF_A_FLOAT * self.num_parameters


@dataclass(frozen=True, slots=True)
class Profile:
    """The layers in forward order. `source` says where seconds come from; `update_s` are the optimizer's, if known.

    `busy` is the share of the machine's cores that other programs took while the layers were timed, if known. With
    `is_adaptive` the optimizer divides steps by the size of gradients, as Adam does: recipes have settings for that.
    With `divides_updates` a worker may make some of the updates, and send weights: `samovar train` does, loops do not.
    """

    net: str
    batch_size: int
    layers: tuple[LayerProfile, ...]
    source: str = ""
    update_s: float | None = None
    format: str = FORMAT
    busy: float | None = None
    is_adaptive: bool = False
    divides_updates: bool = False

    @property
    def num_parameters(self) -> int:
        return sum(layer.num_parameters for layer in self.layers)

    @property
    def net_parameters(self) -> int:
        """All that a run counts, learned or not."""
        return self.num_parameters + sum(layer.num_unlearned for layer in self.layers)

    @property
    def parameter_bytes(self) -> int:
        return BYTES_OF_A_FLOAT * self.num_parameters

    @property
    def is_measured(self) -> bool:
        """Whether every layer has its seconds."""
        return all(layer.forward_s is not None and layer.backward_s is not None for layer in self.layers)

    @property
    def flops(self) -> float:
        """Of a forward and a backward pass over the batch, as they are counted."""
        return sum(sum(flops) for flops in flops_of(self.layers))


def load_profile(path: Path) -> Profile:
    """Read a file of `samovar time --profile`: JSON, or the same fields as TOML. Raises InputError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"--profile {path}: cannot be read: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise InputError(f"--profile {path}: has {len(content):,} bytes; a profile has at most {_MOST_BYTES:,}")
    try:
        values = tomllib.loads(content.decode()) if path.suffix == ".toml" else json.loads(content)
        return _checked(from_plain(Profile, values))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"--profile {path}: is not a profile: {error}; make one with samovar time --profile FILE"
        ) from error


def profile_of(timed: Timed) -> Profile:
    """The profile in the record of `samovar time`; without seconds if its layers were only counted."""
    is_timed = timed.iterations > 0
    layers = tuple(
        LayerProfile(
            layer.name,
            layer.type,
            layer.num_parameters,
            layer.multiply_adds,
            layer.activation_bytes,
            layer.forward_ms / 1e3 if is_timed else None,
            layer.backward_ms / 1e3 if is_timed else None,
            num_unlearned=layer.num_unlearned,
        )
        for layer in timed.layers
        if layer.type != READING
    )
    how = f"timed here, threads: {timed.threads}, {timed.precision}" if is_timed else "counted"
    return Profile(timed.net_name, timed.batch_size, layers, how, divides_updates=True)


def save_profile(profile: Profile, path: Path) -> None:
    """Write it as JSON, whole or not at all. Raises InputError."""
    write_json_atomic(path, to_plain(profile), "give the profile a file elsewhere")


def _checked(profile: Profile) -> Profile:
    if profile.format != FORMAT:
        raise ValueError(f"format is {profile.format!r}, not {FORMAT!r}")
    if not profile.layers:
        raise ValueError("it has no layers")
    if not 1 <= profile.batch_size <= _MOST:
        raise ValueError("it needs a batch_size of at least 1 that fits into 64 bits")
    if not 0 <= (profile.update_s or 0.0) < 1e9:
        raise ValueError("update_s is below 0, or without end")
    for layer in profile.layers:
        num_bytes = (layer.activation_bytes, layer.behind_bytes)
        numbers = (layer.num_parameters, layer.num_unlearned, layer.multiply_adds, *num_bytes)
        times = (layer.forward_s or 0.0, layer.backward_s or 0.0, layer.fresh_s)
        if min(numbers) < 0 or max(numbers) > _MOST or not all(0 <= seconds < 1e9 for seconds in times):
            raise ValueError(f"layer {layer.name!r} has a number below 0, or one without end")
    if not profile.num_parameters:
        raise ValueError("no layer has parameters; there is nothing to exchange")
    if profile.is_measured and not any(layer.forward_s or layer.backward_s for layer in profile.layers):
        raise ValueError("its layers take no time")
    return profile


def flops_of(layers: Sequence[LayerProfile]) -> list[tuple[float, float]]:
    """Forward and backward, where each gradient of a layer takes as long as its forward pass."""
    forward = [float(_FLOPS_OF_A_MULTIPLY_ADD * layer.multiply_adds) for layer in layers]
    return [(flops, flops * sum(made)) for flops, made in zip(forward, gradients_of(layers), strict=True)]


def gradients_of(layers: Sequence[LayerProfile]) -> list[tuple[bool, bool]]:
    """Whether backward makes the gradient of each layer's input, and of its weights: none before the first that learns.

    A layer without any parameters of its own may learn those that it shares with another.
    """
    found, has_learned = [], False
    for layer in layers:
        is_frozen = bool(layer.num_unlearned) and not layer.num_parameters
        found.append((has_learned, not is_frozen))
        has_learned = has_learned or layer.num_parameters > 0 or (layer.multiply_adds > 0 and not is_frozen)
    return found
