"""A solver on flat buffers.

Each rule is one native pass over a bucket, or a few operations on it on a device (`samovar.solver.near`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from samovar import _native
from samovar.core.buffer import FlatBuffer
from samovar.core.errors import InputError
from samovar.core.layout import Bucket
from samovar.core.stateful import State, StateValue
from samovar.solver import near
from samovar.solver.policy import SolverConfig


@dataclass(frozen=True, slots=True)
class Multipliers:
    """A parameter's factors on learning rate and weight decay."""

    lr: float = 1.0
    decay: float = 1.0


def history_key(name: str, index: int) -> str:
    """The key of history `index` (from 0) of parameter `name` ("conv1/0") in a solver's state."""
    return name if index == 0 else f"{name}#{index + 1}"


_TYPE, _BEGUN_AT = "type", "begun_at"
_WITH_THE_NEXT = -1  # step


class Solver:
    """The rule of `config.type` with Caffe's order of operations: updates flat weights from flat gradients, by buckets.

    It finds the learning rate, clips the gradients, divides them by `iter_size` (in the caller's `gradient_scale`),
    regularizes, and applies the rule.

    Clipping (`clip_gradients`) needs the norm over the whole net, before anything is updated:

        norm  = sqrt(sum over all parameters of (iter_size * gradient_scale * gradient)^2)
        scale = gradient_scale * min(1, clip_gradients / norm)

    With clipping, `update` of a bucket only adds up squares; the last bucket of a step updates all. Do not rely on
    new weights before it. Parameters with lr_mult 0 have no gradient. With `sync`, gradients are averages over
    workers; with strategies that exchange weights, each worker clips its own.

    Memory: one or two arrays of N floats, in addition to weights and gradients. Cost: one read and write of weights
    and of each history, one read of gradients (two with clipping). On a device some four times as much, at the speed
    of its memory, and N to 2N floats more where parameters have multipliers of their own.

    `multipliers` are by parameter name; 1 is the default of both. `histories` are `num_histories(config)` zeroed
    arrays, in the order of Caffe's solverstate; by default it allocates them.
    """

    def __init__(
        self,
        config: SolverConfig,
        weights: FlatBuffer,
        gradients: FlatBuffer,
        multipliers: Mapping[str, Multipliers],
        histories: Sequence[FlatBuffer] = (),
    ) -> None:
        self.config = config
        self._rule = RULES[config.type]
        self._constants = tuple(getattr(config, name) for name in self._rule.constants)
        self._weights = weights
        self._gradients = gradients
        self.histories = tuple(histories) or tuple(weights.blank() for _ in self._rule.histories)
        assert len(self.histories) == len(self._rule.histories), (len(histories), config.type)
        self._multipliers = multipliers
        self._num_learned = sum(entry.spec.is_learned for entry in weights.layout.entries)
        self._rows: dict[int, _BucketRows | near.NearRows] = {}
        self._waiting: list[_Waiting] = []
        self._begun_at: int | None = None  # the first step that the histories hold

    def update(self, step: int, bucket: Bucket, gradient_scale: float) -> None:
        """One step on the bucket's parameters, with gradient_scale * (their gradients).

        Call it once a step for every bucket of the layout, in any order.
        """
        if self.config.clip_gradients is None:
            self._apply(step, bucket, gradient_scale)
            return
        self._waiting.append(self._squared(bucket, gradient_scale))
        if sum(len(waiting.squares) for waiting in self._waiting) == self._num_learned:
            complete, self._waiting = self._waiting, []
            factor = self._clip_factor(complete, self.config.clip_gradients)
            for waiting in complete:
                self._apply(step, waiting.bucket, waiting.gradient_scale * factor)

    def state_dict(self) -> State:
        """Every history of every parameter, by `history_key`, the type, and where the histories begin if not at 0."""
        state: State = {_TYPE: self.config.type, **({_BEGUN_AT: self._begun_at} if self._begun_at else {})}
        for index, history in enumerate(self.histories):
            state |= {history_key(name, index): array for name, array in history.logical_arrays().items()}
        return state

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Load a state of `state_dict`. Raises InputError for another net or another type of solver."""
        arrays = {key: value for key, value in state.items() if key not in (_TYPE, _BEGUN_AT)}
        names = [entry.spec.name for entry in self._weights.layout.entries]
        self._check_type(state, len(arrays) / max(1, len(names)))
        parts = [{history_key(name, index) for name in names} for index in range(len(self.histories))]
        unknown = sorted(set(arrays) - set().union(*parts))
        if unknown:
            raise InputError(f"solver state: unknown {unknown}; is it of another net?")
        for index, history in enumerate(self.histories):
            found = {name: arrays[key] for name in names if (key := history_key(name, index)) in arrays}
            history.load_state_dict(found, "momentum" if index == 0 else "second history")
        self._begun_at = int(state.get(_BEGUN_AT, 0))

    def begin_again(self) -> None:
        """Set the histories to zero. The next step then counts as the first one."""
        self._begun_at = _WITH_THE_NEXT
        for history in self.histories:
            history.tensor_N.zero_()

    def _check_type(self, state: Mapping[str, StateValue], num_histories: float) -> None:
        ours, theirs = self.config.type, state.get(_TYPE)
        if theirs is not None and theirs != ours:
            raise InputError(f"solver state: is of type {theirs}, but this solver is of type {ours}; use one of them")
        if num_histories in (1, 2) and num_histories != len(self.histories):
            raise InputError(
                f"solver state: has {num_histories:.0f} histories a parameter, type {ours} keeps "
                f"{len(self.histories)}; it is of another type of solver"
            )

    def _apply(self, step: int, bucket: Bucket, gradient_scale: float) -> None:
        rows = self._rows_of(bucket)
        if self._begun_at is None or self._begun_at == _WITH_THE_NEXT:
            self._begun_at = step
        rate = self.config.policy.rate(step) * self._rule.rate_factor(self.config, max(0, step - self._begun_at))
        weights, gradients = self._weights.array_N, self._gradients.array_N
        histories = [history.array_N for history in self.histories]
        if isinstance(rows, near.NearRows):
            self._rule.near(
                near.DeviceStep(weights, gradients, histories, rows, rate, gradient_scale), *self._constants
            )
            return
        rates = (rows.lr_multipliers * rate).astype(np.float32)
        self._rule.kernel(weights, gradients, *histories, rows.native, rates, gradient_scale, *self._constants)

    def _rows_of(self, bucket: Bucket) -> "_BucketRows | near.NearRows":
        if bucket.index not in self._rows:
            multipliers = [self._multipliers.get(entry.spec.name, Multipliers()) for entry in bucket.entries]
            decays = np.array([one.decay * self.config.weight_decay for one in multipliers], np.float32)
            made = (bucket, np.array([one.lr for one in multipliers]), decays, self.config.regularization_type == "L1")
            size = self._weights.layout.num_elements
            self._rows[bucket.index] = near.NearRows(*made) if self._weights.is_near else _BucketRows.of(*made, size)
        return self._rows[bucket.index]

    def _squared(self, bucket: Bucket, gradient_scale: float) -> "_Waiting":
        assert all(waiting.bucket.index != bucket.index for waiting in self._waiting), f"{bucket} came twice in a step"
        gradients: Any = self._gradients.tensor_N if self._gradients.is_near else self._gradients.array_N
        add_up = near.sum_of_squares if self._gradients.is_near else _native.sum_of_squares
        factor = (gradient_scale * self.config.iter_size) ** 2
        squares = {entry.offset: factor * add_up(gradients[entry.offset : entry.stop]) for entry in bucket.entries}
        return _Waiting(bucket, gradient_scale, squares)

    def _clip_factor(self, complete: list["_Waiting"], limit: float) -> Any:
        squares: dict[int, Any] = {}
        for waiting in complete:
            squares |= waiting.squares
        total = sum(squares[offset] for offset in sorted(squares))  # one order, however buckets are cut
        if isinstance(total, torch.Tensor):
            return near.clip_factor(total, limit)
        norm = math.sqrt(total)
        return limit / norm if norm > limit else 1.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A bucket that waits for the others of its step. `squares` are sums by a parameter's offset, where it is."""

    bucket: Bucket
    gradient_scale: float
    squares: dict[int, Any]


@dataclass(frozen=True, slots=True)
class _BucketRows:
    """A bucket's parameters for the kernels: one row each."""

    native: _native.SolverRows
    lr_multipliers: npt.NDArray[np.float64]

    @classmethod
    def of(
        cls,
        bucket: Bucket,
        lr_multipliers: npt.NDArray[np.float64],
        decays: npt.NDArray[np.float32],
        is_l1: bool,
        num_elements: int,
    ) -> "_BucketRows":
        none = np.zeros_like(decays)
        # A bucket may be a part of one, which begins or ends within a parameter.
        starts = np.array([max(entry.offset, bucket.start) for entry in bucket.entries], np.uint64)
        stops = np.array([min(entry.stop, bucket.stop) for entry in bucket.entries], np.uint64)
        native = _native.SolverRows(
            num_elements, starts, stops - starts, none if is_l1 else decays, decays if is_l1 else none
        )
        return cls(native, lr_multipliers)


@dataclass(frozen=True, slots=True)
class Rule:
    """A kernel of native/solver_kernels.hpp and its twin on a device, names of histories, and Caffe's of constants."""

    kernel: Callable[..., None]
    near: Callable[..., None]
    histories: tuple[str, ...]
    constants: tuple[str, ...]
    rate_factor: Callable[[SolverConfig, int], float] = lambda _config, _step: 1.0


def _bias_correction(config: SolverConfig, step: int) -> float:
    """sqrt(1 - momentum2^t) / (1 - momentum^t) in step t, from 1 on, of the histories; the kernel's constants."""
    momentum, momentum2 = float(np.float32(config.momentum)), float(np.float32(config.momentum2))
    return math.sqrt(1.0 - momentum2 ** (step + 1)) / (1.0 - momentum ** (step + 1))


RULES = {
    "SGD": Rule(_native.sgd_step, near.sgd_step, ("history",), ("momentum",)),
    "Nesterov": Rule(_native.nesterov_step, near.nesterov_step, ("history",), ("momentum",)),
    "AdaGrad": Rule(_native.adagrad_step, near.adagrad_step, ("history",), ("delta",)),
    "RMSProp": Rule(_native.rmsprop_step, near.rmsprop_step, ("history",), ("rms_decay", "delta")),
    "AdaDelta": Rule(_native.adadelta_step, near.adadelta_step, ("squares", "moves"), ("momentum", "delta")),
    "Adam": Rule(
        _native.adam_step, near.adam_step, ("means", "squares"), ("momentum", "momentum2", "delta"), _bias_correction
    ),
}


def num_histories(config: SolverConfig) -> int:
    """The number of histories: extra floats per parameter value."""
    return len(RULES[config.type].histories)
