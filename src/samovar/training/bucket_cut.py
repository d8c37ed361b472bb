"""The cut of a net into buckets: as --bucket says, or for `auto` by a prediction from machine and net.

Parameters whose gradients may travel as factors are buckets of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import nn

from samovar.collectives.cost import (
    ELEMENT_BYTES,
    choose_all_reduce,
    predicted_between_s,
    predicted_s,
    require_messages,
)
from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.plans import ALL_REDUCES
from samovar.config import RunConfig
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.layout import Bucket, Layout
from samovar.core.machine import NOMINAL
from samovar.frontends.caffe.costs import backward_multiply_adds
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.torch.factors import ScaledProduct, apart, factoring_of
from samovar.model.model import layout_of
from samovar.report.wording import counted
from samovar.strategies.bucketing import ExchangeModel, least_exposed
from samovar.strategies.config import StrategyConfig
from samovar.strategies.factors import BYTE_S, TCP_BYTE_S, Factoring
from samovar.strategies.traits import ALWAYS, AUTO, NONE
from samovar.strategies.trial import TrialCallback
from samovar.training.memory import RankMemory

# A core's rate on a net's products in float32: between 36e9 of LeNet and 81e9 of AlexNet (benchmarks/run.py nets).
MULTIPLY_ADDS_PER_S = 50e9
_REDUCE_AND_BROADCAST = "tree"
_LARGE_BYTES = 1 << 20


def cut_buckets(
    config: RunConfig,
    sharing: StrategyConfig,
    layout: Layout,
    net: CaffeNet,
    iter_size: int,
    mapped: bool,
    num_apart: int = 0,
) -> tuple[Bucket, ...]:
    """The buckets, in the order in which backward finishes them; each of the first `num_apart` parameters is one.

    Gradients are exchanged in the last of `iter_size` passes. `mapped` says whether ranks map each other's memory.
    A pure function of the configuration and the net, so that every rank and every resumed run makes the same cut.
    """
    others = Layout(layout.learned[num_apart:], layout.num_elements)
    sizes = [entry.spec.size * ELEMENT_BYTES for entry in others.entries]
    if not sizes or not sharing.automatic_buckets or config.exact is not None or config.workers == 1:
        lengths = [len(bucket.entries) for bucket in others.buckets(sharing.bucket_size_bytes)]
    else:
        model = exchange_model(config, sharing, sum(sizes), mapped)
        lengths = [*least_exposed(sizes, _backward_s(config, others, net, iter_size), model)]
    return layout.cut([*[1] * num_apart, *lengths])


def exchange_model(config: RunConfig, sharing: StrategyConfig, num_bytes: int, mapped: bool) -> ExchangeModel:
    """A line through the predicted times of two exchanges: a tiny one, and the whole model of `num_bytes`.

    Each exchange behind the backward pass also wakes the progress thread.
    """
    record, workers, oversubscribed = config.calibration, config.workers, config.oversubscribed
    plan = sharing.collective
    if plan == AUTO and config.hosts is None:
        plan = choose_all_reduce(record, workers, num_bytes, mapped, oversubscribed)
    if sharing.has_owners or plan not in ALL_REDUCES:
        plan = _REDUCE_AND_BROADCAST
    predicted = partial(predicted_s, record, plan, workers, oversubscribed=oversubscribed)
    if config.hosts is not None:  # the links between hosts are what takes long
        require_messages(plan)
        predicted = partial(predicted_between_s, record, plan, len(config.hosts.hosts))
    latency_s = predicted(num_bytes=ELEMENT_BYTES * workers)
    added_s = predicted(num_bytes=num_bytes) - latency_s
    bytes_per_s = num_bytes / added_s if num_bytes and added_s > 0 else record.copy_bandwidth_one_bytes_per_s
    return ExchangeModel(latency_s + record.wake_up_s, bytes_per_s, hidden_fraction(config, sharing))


def hidden_fraction(config: RunConfig, sharing: StrategyConfig) -> float:
    """The fraction of the exchanges' work that the backward pass hides: each worker's spare cores, at most 1.

    Without a spare core, the progress thread takes time from the threads that compute, or from another rank's.
    """
    if sharing.overlap in (None, "none") or config.oversubscribed:
        return 0.0
    return float(min(1, config.spare_cpus))


def cut_notices(config: RunConfig, sharing: StrategyConfig, buckets: Sequence[Bucket]) -> tuple[str, ...]:
    """A notice if the requested overlap has nothing to overlap."""
    if not sharing.automatic_buckets or sharing.overlap in (None, "none") or len(buckets) > 1 or config.workers == 1:
        return ()
    if hidden_fraction(config, sharing):
        return ()
    return (
        f"--overlap {sharing.overlap} has no effect: --bucket auto keeps the model whole, because no worker has a core "
        "to spare for the exchange. Use fewer workers or threads, or divide the model with --bucket layer or --bucket "
        "BYTES",
    )


def described(config: RunConfig, buckets: Sequence[Bucket]) -> str:
    """The cut as text, "3 buckets (auto)"; empty if the model is not cut."""
    if config.strategy.exchanges_weights or config.exact is not None:
        return ""
    text = counted(len(buckets), "bucket")
    return f"{text} ({AUTO})" if config.strategy.automatic_buckets else text


def _backward_s(config: RunConfig, layout: Layout, net: CaffeNet, iter_size: int) -> list[float]:
    """Estimated seconds from one parameter's gradient to the next one's, by multiply-adds, in the layout's order."""
    counts = backward_multiply_adds(net)
    threads = config.threads_per_worker if config.hosts is None else config.hosts.threads
    rate = MULTIPLY_ADDS_PER_S * threads / _batch_share(config, net, iter_size)
    return [counts[entry.spec.name] / rate for entry in layout.learned]


def _batch_share(config: RunConfig, net: CaffeNet, iter_size: int) -> float:
    """A worker's samples in a backward pass, as a fraction of those that the net was built for."""
    if config.large_batch is not None:
        built_for = next((shapes[0][0] for step in net.steps if (shapes := step.layer.top_shapes) and shapes[0]), 1)
        return config.large_batch.batch_size / (iter_size * config.workers * built_for)
    return 1 / config.workers if config.shares_batch else 1.0


def layout_with_factors(parameters: Mapping[str, nn.Parameter], sharing: StrategyConfig) -> tuple[Layout, int]:
    """The layout of parameters, and how many learned parameters, which come first, may travel as factors.

    Raises InputError if there are none, but they were asked for.
    """
    learned = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    first = apart(learned, sharing.factors)
    if sharing.factors == ALWAYS and not first:
        raise InputError(f"--factors {ALWAYS}: the net learns no matrix or kernel; choose {AUTO} or {NONE}")
    in_order = sorted(parameters.items(), key=lambda named: named[0] in first)  # the layout reverses it
    return layout_of(dict(in_order)), len(first)


def factoring_in(
    config: RunConfig,
    sharing: StrategyConfig,
    collectives: PlannedCollectives,
    buckets: Sequence[Bucket],
    memory: RankMemory,
    deadline: Callable[[], Deadline],
    callback: TrialCallback | None,
) -> Factoring:
    """The choice of factors for these buckets of one parameter each. It follows --calibration if there is one."""
    link = None if config.calibration == NOMINAL else config.calibration.transports.get("tcp")
    byte_s = BYTE_S if link is None else TCP_BYTE_S + 1.0 / link.bandwidth_at(_LARGE_BYTES)
    factoring = factoring_of(collectives, sharing, deadline, (callback or TrialCallback()).tell, byte_s)
    for bucket in buckets:
        factoring.add(bucket, memory.gradients, ScaledProduct(), 1.0)
    return factoring
