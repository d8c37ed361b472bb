"""The flags of a strategy and of what a step is made of."""

from typing import Annotated, Any

import typer

from samovar.cli.flag_groups import AtCenter, Compression, Rates
from samovar.core.device import DEVICES
from samovar.core.trace import TraceWindow
from samovar.strategies.catalog import TRAITS
from samovar.strategies.config import STRATEGIES, StrategyConfig, parse_bucket
from samovar.strategies.traits import AUTO, NONE

Strategy = Annotated[str, typer.Option(help=f"How workers share what they learn: {', '.join(STRATEGIES)}.")]
Bucket = Annotated[str, typer.Option(help="What sync exchanges as one: auto, model, layer, or bytes.")]
SyncPeriod = Annotated[
    int | None, typer.Option(help="Steps from one exchange of weights to the next; default: by strategy.")
]
Exact = Annotated[
    int | None,
    typer.Option(
        help="Share the batch in so many slices, summed in one order: the same bits for any workers up to it."
    ),
]
Precision = Annotated[
    str,
    typer.Option(help="Of convolutions and inner products: fp32, or bf16 with fp32 weights, statistics and update."),
]
Device = Annotated[
    str, typer.Option(help=f"Where nets compute: {DEVICES}; auto: CUDA where it is there, else the CPU.")
]
Trace = Annotated[
    str | None, typer.Option(help="Record these steps of all ranks as a timeline, for example steps=20-30.")
]
HoldData = Annotated[
    bool,
    typer.Option("--hold-data", help="Read and decode the training set once, into the memory of all workers together."),
]
BatchMode = Annotated[
    str, typer.Option(help="Whose batch_size the net gives: per-worker (as Caffe's multi-GPU) or global.")
]


def sharing_of(
    name: str,
    collective: str,
    bucket: str,
    sync_period: int | None,
    rates: Rates,
    at_center: AtCenter | None = None,
    compression: Compression | None = None,
) -> StrategyConfig:
    """The strategy that the flags ask for.

    --bucket auto, the default, is nothing to one that has no buckets; --compress none, to one that cannot compress.
    """
    size = None if bucket == AUTO else parse_bucket(bucket, "'auto', 'model', 'layer'")
    settings = _settings(at_center or AtCenter(), compression or Compression())
    is_automatic = bucket == AUTO and name in TRAITS and not TRAITS[name].exchanges_weights
    return StrategyConfig(name, collective, size, sync_period, *rates, automatic_buckets=is_automatic, **settings)


def _settings(center: AtCenter, compression: Compression) -> dict[str, Any]:
    return {
        "compress": None if compression.compress == NONE else compression.compress,
        "always_compresses": compression.compress_always,
        "max_staleness_steps": center.max_staleness,
        "max_refused_pushes": center.max_refused_pushes,
        "group_size": center.group_size,
        "read_first": center.read_first,
        "center_momentum": center.center_momentum,
    }


def trace_of(written: str | None) -> TraceWindow | None:
    """The steps that --trace names; InputError where it names none."""
    return None if written is None else TraceWindow.parse(written)
