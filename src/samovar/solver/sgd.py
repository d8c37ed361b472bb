"""Stochastic gradient descent with momentum, with Caffe's arithmetic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from samovar import _native
from samovar.core.buffer import FlatBuffer
from samovar.core.layout import Bucket
from samovar.core.stateful import State, StateValue
from samovar.solver.policy import PolicyConfig


@dataclass(frozen=True, slots=True)
class SgdConfig:
    policy: PolicyConfig
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True, slots=True)
class Multipliers:
    """A parameter's factors on learning rate and weight decay."""

    lr: float = 1.0
    decay: float = 1.0


class Sgd:
    """h = momentum * h + rate * (g + decay * w);  w = w - h.

    rate = lr_mult * policy(step), decay = decay_mult * weight_decay, each per parameter. The learning rate is
    inside the momentum buffer, as in Caffe (torch.optim.SGD keeps it outside). One pass over memory.

    Reference: Caffe's SGD solver; Krizhevsky et al., ImageNet classification, 2012, section 5.
    """

    def __init__(
        self,
        config: SgdConfig,
        weights: FlatBuffer,
        gradients: FlatBuffer,
        multipliers: Mapping[str, Multipliers],
    ) -> None:
        self.config = config
        self._weights = weights
        self._gradients = gradients
        self.history = FlatBuffer.zeros(weights.layout)
        self._multipliers = multipliers
        self._runs: dict[int, _Runs] = {}

    def update(self, step: int, bucket: Bucket, gradient_scale: float) -> None:
        """One step on the bucket's parameters, with gradient_scale * (their gradients)."""
        runs = self._runs.get(bucket.index)
        if runs is None:
            runs = self._runs[bucket.index] = _Runs.of(bucket, self._multipliers, self.config.weight_decay)
        _native.sgd_momentum(
            self._weights.array_N,
            self._gradients.array_N,
            self.history.array_N,
            runs.starts,
            runs.sizes,
            (runs.lr_multipliers * self.config.policy.rate(step)).astype(np.float32),
            runs.decays,
            self.config.momentum,
            gradient_scale,
        )

    def state_dict(self) -> State:
        return self.history.state_dict()

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        self.history.load_state_dict(state, "momentum")


@dataclass(frozen=True, slots=True)
class _Runs:
    """A bucket's parameters as the kernel wants them: one row each."""

    starts: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]
    lr_multipliers: npt.NDArray[np.float64]
    decays: npt.NDArray[np.float32]

    @classmethod
    def of(cls, bucket: Bucket, multipliers: Mapping[str, Multipliers], weight_decay: float) -> "_Runs":
        rows: Sequence[Multipliers] = [multipliers.get(e.spec.name, Multipliers()) for e in bucket.entries]
        return cls(
            starts=np.array([e.offset for e in bucket.entries], np.uint64),
            sizes=np.array([e.spec.size for e in bucket.entries], np.uint64),
            lr_multipliers=np.array([row.lr for row in rows], np.float64),
            decays=np.array([row.decay * weight_decay for row in rows], np.float32),
        )
