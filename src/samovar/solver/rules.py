"""The update rules, each one pass over memory with Caffe's arithmetic.

In all of them, per parameter, with float32 operations that are rounded one by one:

    g    = scale * gradient + decay_mult * weight_decay * w          (L2; with L1: ... * sign(w))
    rate = lr_mult * policy(step)

SGD         h = momentum * h + rate * g
            w = w - h
Nesterov    h' = momentum * h + rate * g
            w = w - ((1 + momentum) * h' - momentum * h)
            h = h'
AdaGrad     h = h + g^2
            w = w - rate * (g / (sqrt(h) + delta))
RMSProp     h = rms_decay * h + (1 - rms_decay) * g^2
            w = w - rate * (g / (sqrt(h) + delta))
AdaDelta    s = momentum * s + (1 - momentum) * g^2
            u = g * sqrt((delta + m) / (delta + s))
            m = momentum * m + (1 - momentum) * u^2
            w = w - rate * u
Adam        m = momentum * m + (1 - momentum) * g
            s = momentum2 * s + (1 - momentum2) * g^2
            w = w - rate * sqrt(1 - momentum2^t) / (1 - momentum^t) * (m / (sqrt(s) + delta)),   t = step + 1

SGD keeps the rate inside its momentum buffer (torch.optim.SGD outside); Adam adds delta to the root before the bias
correction ("epsilon hat" of the paper). A parameter with lr_mult 0 has histories like any other.

Sources: Krizhevsky et al. 2012, section 5 (SGD); Sutskever et al. 2013 (Nesterov); Duchi et al. 2011 (AdaGrad);
Tieleman and Hinton 2012 (RMSProp); Zeiler 2012 (AdaDelta); Kingma and Ba 2015 (Adam); Caffe's solvers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from samovar import _native
from samovar.solver.config import SolverConfig


@dataclass(frozen=True, slots=True)
class Rule:
    """A kernel of native/solver_kernels.hpp, its histories by their names there, and its constants by Caffe's."""

    kernel: Callable[..., None]
    histories: tuple[str, ...]
    constants: tuple[str, ...]
    rate_factor: Callable[[SolverConfig, int], float] = lambda _config, _step: 1.0


def _bias_correction(config: SolverConfig, step: int) -> float:
    """sqrt(1 - momentum2^t) / (1 - momentum^t), with the constants as the kernel has them."""
    momentum, momentum2 = float(np.float32(config.momentum)), float(np.float32(config.momentum2))
    return math.sqrt(1.0 - momentum2 ** (step + 1)) / (1.0 - momentum ** (step + 1))


RULES = {
    "SGD": Rule(_native.sgd_step, ("history",), ("momentum",)),
    "Nesterov": Rule(_native.nesterov_step, ("history",), ("momentum",)),
    "AdaGrad": Rule(_native.adagrad_step, ("history",), ("delta",)),
    "RMSProp": Rule(_native.rmsprop_step, ("history",), ("rms_decay", "delta")),
    "AdaDelta": Rule(_native.adadelta_step, ("squares", "moves"), ("momentum", "delta")),
    "Adam": Rule(_native.adam_step, ("means", "squares"), ("momentum", "momentum2", "delta"), _bias_correction),
}
