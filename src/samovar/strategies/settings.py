"""The settings that several strategies share, and the types of all of ours."""

from dataclasses import replace

import numpy as np

from samovar.collectives.encoded import CODECS
from samovar.strategies.recipe import BY_ROOT, Recipe, always
from samovar.strategies.traits import ALWAYS, AUTO, MAX_REFUSED_PUSHES, NONE, SYNC_PERIOD_STEPS, Chosen, Setting

SYNC_PERIOD = Setting(
    SYNC_PERIOD_STEPS,
    int,
    "Steps from one exchange of weights to the next.",
    least=1,
    unit="steps",
    words=lambda steps, _: "an exchange every " + ("step" if steps == 1 else f"{steps} steps"),
)
MOVING_RATE = Setting(
    "moving_rate",
    float,
    "How far a worker and the center pull each other.",
    above=0,
    below=1,
    words="{label} {value:.4g}",
    source="Zhang, Choromanska and LeCun 2015",
)
WORKER_RATE = Setting(
    "worker_rate",
    float,
    "How far a worker goes to the center at an exchange, if that is more than the moving rate.",
    above=0,
    below=1,
    default_words="the moving rate",
    words=lambda rate, chosen: f"a worker goes {max(rate, chosen['moving_rate']):g} of the way",
    source="Zhang, Choromanska and LeCun 2015, whose analysis has both rates",
    is_advanced=True,
)
OVERLAP = Setting("overlap", str, "The computation that an exchange runs behind.", is_advanced=True)
MAX_STALENESS = Setting(
    "max_staleness_steps",
    int,
    "Most updates of others between a worker's read of the center and its own update.",
    least=0,
    unit="updates",
    default_words="any",
    words="staleness up to {value} updates",
    is_advanced=True,
)
MAX_REFUSED = Setting(
    "max_refused_pushes",
    int,
    "A worker is lost after this number of updates in a row that were not finite.",
    least=1,
    default_words=f"{MAX_REFUSED_PUSHES}",
    words="",
    is_advanced=True,
)
READ_FIRST = Setting(
    "read_first",
    bool,
    "Read the center before the worker's own push has arrived.",
    default=False,
    default_words="off",
    words=lambda is_first, _: "the center read before the push is awaited" if is_first else "",
    source="Ahn et al. 2018 (ShmCaffe)",
    is_advanced=True,
)
FACTORS = Setting(
    "factors",
    str,
    "Whether gradients of large matrices and kernels travel as two factors, if these are smaller.",
    flag="--factors",
    choices=(NONE, AUTO, ALWAYS),
    default_words="`auto` between hosts",
    words=lambda factors, _: {AUTO: "gradients as factors where these are less", NONE: ""}.get(
        factors, "gradients as factors"
    ),
    source="Xie et al. 2014; Zhang et al. 2017 (Poseidon)",
    is_advanced=True,
)
COMPRESS = Setting(
    "compress", str, "How to compress what workers send.", choices=(NONE, *CODECS), default_words=NONE, words=""
)
COMPRESS_DIFFERENCES = replace(COMPRESS, words=lambda codec, _: "" if codec == NONE else f"differences as {codec}")
ALWAYS_COMPRESSES = Setting(
    "always_compresses",
    bool,
    "Compress from the first step on, without a trial.",
    flag="--compress-always",
    default_words="off",
    words="",
    is_advanced=True,
)


def num_pushers(chosen: Chosen, world_size: int) -> int:
    """The number that change the center: workers, or groups of them."""
    return max(1, world_size // (chosen["group_size"] or 1))


def _as_fast(chosen: Chosen, num_workers: int) -> float:
    """Center and workers pull at each other, so both go alpha G / (alpha G + beta) of the way that G groups step.

    Workers that take several steps alone at a higher rate would go too far from each other, and so at 4 times the rate.
    """
    if (chosen[SYNC_PERIOD_STEPS] or 1) > 1:
        return 1.0
    rate, worker_rate = float(chosen["moving_rate"]), float(chosen["worker_rate"] or 0.0)
    return min(1 + max(worker_rate, rate) / (rate * num_pushers(chosen, num_workers)), 4.0)


# A worker with a P-th of the batch makes noisy steps. Pulled at only now and then, or weakly, it learns slowly.
ELASTIC_RECIPE = Recipe(
    settings={SYNC_PERIOD_STEPS: always(1), WORKER_RATE.name: always(0.5)},
    rate=_as_fast,
    adaptive_rate=lambda chosen, num_workers: BY_ROOT(chosen, num_pushers(chosen, num_workers)),
)


def further(worker_rate: float | None, rate: float) -> np.float32:
    """The multiple of d that x goes after d, so that it goes beta (x - c) in all, if beta is more than `rate`."""
    return np.float32(max((worker_rate or 0.0) / rate - 1.0, 0.0))


def diverging_rate(worker_rate: float | None, num_workers: int) -> float:
    """The moving rate alpha from which on a center and workers that all exchange at once move apart.

    The distance between it and their mean is multiplied by 1 - max(alpha, beta) - alpha P, beta the worker's rate.
    """
    return min(2.0 / (num_workers + 1), (2.0 - (worker_rate or 0.0)) / num_workers)


def pulls_too_far(rate: float, world_size: int, default: object, consequence: str) -> tuple[str, ...]:
    """The warning of a moving rate."""
    return (f"--moving-rate {rate:g} with {world_size} workers {consequence} (default {default:.4g})",)
