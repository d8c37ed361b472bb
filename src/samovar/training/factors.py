"""The gradients of a Caffe net's matrices that may travel as factors."""

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from samovar.collectives.engine import PlannedCollectives
from samovar.config import RunConfig
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.layout import Bucket, Layout
from samovar.core.machine import NOMINAL
from samovar.frontends.torch.factors import factoring_of, matrices, scaled_product
from samovar.model.model import layout_of
from samovar.strategies.config import StrategyConfig
from samovar.strategies.factors import BYTE_S, LEAST_BYTES, TCP_BYTE_S, Factoring
from samovar.strategies.traits import ALWAYS, AUTO, NONE
from samovar.strategies.trial import TrialCallback
from samovar.training.memory import RankMemory

_LARGE_BYTES = 1 << 20


def layout_with_factors(parameters: Mapping[str, nn.Parameter], sharing: StrategyConfig) -> tuple[Layout, int]:
    """The layout of parameters, and how many matrices, which come first, may travel as factors."""
    apart = _matrices_apart(parameters, sharing)
    in_order = sorted(parameters.items(), key=lambda named: named[0] in apart)  # the layout reverses it
    return layout_of(dict(in_order)), len(apart)


def _matrices_apart(parameters: Mapping[str, nn.Parameter], sharing: StrategyConfig) -> tuple[str, ...]:
    """The learned matrices that may travel as factors. Raises InputError if there are none, but they were asked for."""
    if not sharing.takes_factors:
        return ()
    learned = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    names = matrices(learned, 0 if sharing.factors == ALWAYS else LEAST_BYTES)
    if sharing.factors == ALWAYS and not names:
        raise InputError(f"--factors {ALWAYS}: the net learns no matrix; choose {AUTO} or {NONE}")
    return names


def factoring_in(
    config: RunConfig,
    sharing: StrategyConfig,
    collectives: PlannedCollectives,
    buckets: Sequence[Bucket],
    memory: RankMemory,
    deadline: Callable[[], Deadline],
    callback: TrialCallback | None,
) -> Factoring:
    """The choice of factors for these buckets, which have a matrix each. It follows --calibration if there is one."""
    link = None if config.calibration == NOMINAL else config.calibration.transports.get("tcp")
    byte_s = BYTE_S if link is None else TCP_BYTE_S + 1.0 / link.bandwidth_at(_LARGE_BYTES)
    factoring = factoring_of(collectives, sharing, deadline, (callback or TrialCallback()).tell, byte_s)
    for bucket in buckets:
        factoring.add(bucket, memory.gradients, scaled_product, 1.0)
    return factoring
