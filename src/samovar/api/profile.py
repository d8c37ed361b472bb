"""A profile of a user's own loop, and its comparison with a prediction after it has finished."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from samovar.api.exchanges import matrix_names
from samovar.api.figures_wanted import say, warn
from samovar.core.errors import InputError
from samovar.core.host import Others, family_seconds
from samovar.frontends.torch.backward_pass import BackwardPass
from samovar.frontends.torch.factors import rows_in_place
from samovar.launch.wishes import state_folder
from samovar.predict.kept import Kept, Ran, Subject, foreseen
from samovar.report.profile import LayerProfile, Profile, save_profile
from samovar.strategies.config import StrategyConfig

_FRESH_ROUNDS: Final = 5
_NUM_UNTIMED_STEPS: Final = 2  # the first finds the layers, too
_OUTSIDE: Final = "outside layers"
_BEHIND: Final = "behind "  # a layer: parts without parameters
_Seconds = dict[str, list[float]]


class LoopProfile:
    """Times a loop's steps on one rank, and writes their profile after `num_steps`; two steps before are left out.

    A layer is a called module with trained parameters of its own, or of parts that are never called. Its forward pass
    lasts until the next layer is called. Its backward pass begins when the gradients of the one before are complete,
    and ends with its own. So all work between layers is counted. Seconds are medians.

    Raises InputError if the file cannot be there.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        path: Path,
        num_steps: int,
        batch_size: int | None,
        is_adaptive: bool,
    ) -> None:
        if num_steps < 1 or (batch_size is not None and batch_size < 1):
            raise InputError(f"profile: steps {num_steps}, batch_size {batch_size}: give numbers of at least 1")
        if not path.parent.is_dir():
            raise InputError(f"profile: {path}: there is no folder {path.parent}; make it, or give another")
        self._model, self._parameters, self._path = model, parameters, path
        self._num_steps, self._batch_size, self._is_adaptive = num_steps, batch_size, is_adaptive
        self._other_programs = Others(own_s=family_seconds)
        self._device = next(iter(parameters.values())).device
        self._called: dict[str, int] = {}  # bytes of the outputs in this step
        self._bytes: dict[str, int] = {}  # in the step before
        self._matrices = {name: parameters[name] for name in matrix_names(parameters, StrategyConfig())}
        self._rows: dict[str, list[int]] = {}  # of their products, if `sync` makes these in place
        self._layer_of: dict[str, str] = {}  # by parameter
        self._layers: frozenset[str] = frozenset()
        self._order: list[str] = []
        self._open: str | None = None  # the layer whose forward pass has begun
        self._is_backward = False
        self._last_s = 0.0
        self._step = self._num_samples = 0
        self._now: dict[str, dict[str, float]] = {"forward": {}, "backward": {}}
        self._found: dict[str, _Seconds] = {"forward": {}, "backward": {}}
        self._updates_s: list[float] = []
        self._samples: list[int] = []
        self._hooks: list[RemovableHandle] = []
        for name, module in model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(partial(self._begin, name)))
            self._hooks.append(module.register_forward_hook(partial(self._end, name)))
        for name, parameter in parameters.items():
            hook: Any = partial(self._final, name)
            self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def backward(self, backward: BackwardPass, num_samples: int) -> None:
        """Run a pass of `num_samples` samples; 0 if their number is not known."""
        if not (num_samples or self._batch_size):
            raise InputError(
                "profile: the samples of a step are not known; give batch_size=N, or get batches from "
                "replica.shard(loader) or replica.batches(loader, N)"
            )
        if self._open is not None:
            self._lap("forward", self._open)
        if self._step < _NUM_UNTIMED_STEPS and self._matrices:
            self._rows = rows_in_place(backward, self._matrices)
        self._num_samples += num_samples
        self._open, self._is_backward, self._order = None, True, []
        self._last_s = self._now_s()
        try:
            backward.run()
        finally:
            self._lap("backward", _OUTSIDE)
            self._is_backward = False

    def skip(self) -> None:
        """Leave out the forward pass that has begun: nothing is learned from it."""
        self._open = None
        self._now["forward"].clear()
        self._called.clear()

    def stepped(self, update_s: float) -> bool:
        """A step is over; True if it was the last one that is measured."""
        self._step += 1
        if self._step == 1:
            self._layer_of = {name: self._caller(name) for name in self._parameters}
            self._layers = frozenset(self._layer_of.values())
        if self._step > _NUM_UNTIMED_STEPS:
            self._keep(update_s)
        for seconds in self._now.values():
            seconds.clear()
        self._bytes, self._called, self._num_samples = self._called, {}, 0
        return len(self._updates_s) == self._num_steps

    def close(self) -> None:
        """Write the profile of the steps so far, and leave the model as it was."""
        for hook in self._hooks:
            hook.remove()
        if not self._updates_s:
            warn(f"no profile was written to {self._path}: no step came after the first {_NUM_UNTIMED_STEPS}")
            return
        try:
            save_profile(profile := replace(self._profile(), busy=self._other_programs.share()), self._path)
            keep_profile(self._model, profile)
        except InputError as error:
            warn(f"no profile: {error}")
            return
        say(f"{len(self._updates_s)} steps are in the profile {self._path}; see samovar predict --profile {self._path}")

    def _begin(self, name: str, _module: nn.Module, _inputs: object) -> None:
        if self._is_backward or not torch.is_grad_enabled():
            return  # a checkpoint's second forward pass, or a test
        if self._open is None:
            self._open, self._last_s = _OUTSIDE, self._now_s()
        if name in self._layers:
            self._lap("forward", self._open)
            self._open = name

    def _end(self, name: str, module: nn.Module, _inputs: object, outputs: object) -> None:
        tensors = outputs if isinstance(outputs, tuple | list) else (outputs,)
        if not self._is_backward and torch.is_grad_enabled():
            num_bytes = sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
            self._called[name] = self._called.get(name, 0) + num_bytes
            if self._open and name not in self._layers and not any(module.children()):
                behind = _BEHIND + self._open
                self._called[behind] = self._called.get(behind, 0) + num_bytes

    def _final(self, name: str, _parameter: torch.Tensor) -> None:
        if self._is_backward and name in self._layer_of:
            self._order.append(self._layer_of[name])
            self._lap("backward", self._layer_of[name])

    def _caller(self, parameter: str) -> str:
        """The innermost module of this parameter that is called."""
        inside = parameter.rpartition(".")[0]
        while inside and inside not in self._called:
            inside = inside.rpartition(".")[0]
        return inside

    def _now_s(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _lap(self, kind: str, layer: str) -> None:
        now_s, seconds = self._now_s(), self._now[kind]
        seconds[layer] = seconds.get(layer, 0.0) + now_s - self._last_s
        self._last_s = now_s

    def _keep(self, update_s: float) -> None:
        for kind, found in self._found.items():
            for layer in (*self._layers, _OUTSIDE):
                found.setdefault(layer, []).append(self._now[kind].get(layer, 0.0))
        self._updates_s.append(update_s)
        self._samples.append(self._batch_size or self._num_samples)

    def _profile(self) -> Profile:
        """A layer whose gradient nobody saw counts as the last of the backward pass."""
        whole = type(self._model).__name__
        last = {layer: index for index, layer in enumerate(self._order)}
        layers = sorted(dict.fromkeys(self._layer_of.values()), key=lambda layer: -last.get(layer, len(last)))
        how = f"timed in a loop, threads: {torch.get_num_threads()}, {self._device}"
        rows = tuple(self._layer(layer, layer or whole) for layer in layers)
        outside = LayerProfile(_OUTSIDE, "", 0, 0, 0, *self._medians(_OUTSIDE))
        samples, update_s = int(statistics.median(self._samples)), statistics.median(self._updates_s)
        return Profile(whole, samples, (outside, *rows), how, update_s, is_adaptive=self._is_adaptive)

    def _layer(self, layer: str, name: str) -> LayerProfile:
        own = [parameter for parameter, its in self._layer_of.items() if its == layer]
        kind = type(self._model.get_submodule(layer)).__name__
        num_parameters = sum(self._parameters[each].numel() for each in own)
        behind, num_bytes = self._bytes.get(_BEHIND + layer, 0), self._bytes.get(layer, 0)
        fresh_s = sum(_fresh_s(self._parameters[each], rows) for each in own for rows in self._rows.get(each, ()))
        return LayerProfile(name, kind, num_parameters, 0, num_bytes, *self._medians(layer), behind, fresh_s)

    def _medians(self, layer: str) -> tuple[float, float]:
        forward_s, backward_s = (statistics.median(self._found[kind][layer]) for kind in ("forward", "backward"))
        return forward_s, backward_s


def _fresh_s(weight: torch.Tensor, num_rows: int) -> float:
    """How much longer the product of `num_rows` rows that is this weight's gradient takes, if its memory is fresh."""
    left, right = (torch.ones(num_rows, size) for size in weight.shape)
    place = torch.zeros_like(weight)
    longer_s = []
    for _ in range(_FRESH_ROUNDS):
        begin_s = time.perf_counter()
        torch.mm(left.t(), right)
        middle_s = time.perf_counter()
        torch.mm(left.t(), right, out=place)
        longer_s.append(2 * middle_s - begin_s - time.perf_counter())
    return max(0.0, statistics.median(longer_s))


def keep_profile(model: nn.Module, profile: Profile) -> None:
    """For later runs of this model on this machine."""
    if (subject := _subject(model)) is not None:
        Kept(state_folder()).keep_profile(subject, profile)


def compare(
    model: nn.Module,
    config: StrategyConfig,
    places: tuple[int, int],
    mean_step: tuple[float, int],
    batch_size: float,
    rates: Sequence[float],
    busy: float,
) -> None:
    """Say how far a step's time is from its prediction, if there can be one.

    `places` are the ranks, and the most on a host. `mean_step` has the seconds, and of how many steps. `rates` are the
    samples per second of workers that do not wait for each other. `busy` is that of `Ran`.
    """
    (workers, ranks_per_host), (step_s, num_steps) = places, mean_step
    subject = _subject(model)
    if subject is None or (config.takes_factors and matrix_names(dict(model.named_parameters()), config)):
        return  # a prediction moves whole gradients
    if config.may_stop_compressing:
        return  # a trial chose, and its steps are in the mean
    if config.is_async:
        if len(rates) < workers or not batch_size or min(rates) <= 0:
            return
        step_s = workers * batch_size / sum(rates)
    found = foreseen(Ran(subject, config, workers, ranks_per_host, batch_size, step_s, num_steps, busy=busy))
    if found is not None:
        say(str(found))


def _subject(model: nn.Module) -> Subject | None:
    """None for a model on a device: what is kept is for the cores of this machine."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if any(parameter.device.type != "cpu" for parameter in trained):
        return None
    num_parameters = sum(parameter.numel() for parameter in trained)
    return Subject(type(model).__name__, num_parameters, torch.get_num_threads())
