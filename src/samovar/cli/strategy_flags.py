"""The flags of a strategy and of what a step is made of."""

from typing import Annotated

import typer

from samovar.core import large_batch as large
from samovar.core.errors import InputError
from samovar.core.large_batch import RATE_SCALINGS
from samovar.core.trace import TraceWindow
from samovar.strategies.config import AUTO, OWNERS, STRATEGIES, VARIANTS, StrategyConfig, parse_bucket

Strategy = Annotated[str, typer.Option(help=f"How workers share what they learn: {', '.join(STRATEGIES)}.")]
Bucket = Annotated[str, typer.Option(help="What sync exchanges as one: auto, model, layer, or bytes.")]
SyncPeriod = Annotated[
    int | None, typer.Option(help="Steps from one exchange of weights to the next; default: by strategy.")
]
MovingRate = Annotated[
    float | None, typer.Option(help="How far sync-easgd pulls a worker to the center; default: 0.9 / (workers + 1).")
]
Overlap = Annotated[
    str | None,
    typer.Option(
        help="Behind what an exchange runs. sync: none, backward, full; sync-easgd: none, step, period (default)."
    ),
]
Owner = Annotated[
    str | None,
    typer.Option(help=f"Who updates a bucket with --overlap full: {', '.join(OWNERS)}; default: {OWNERS[0]}."),
]
Variant = Annotated[
    str | None, typer.Option(help=f"How sync-easgd meets its center: {', '.join(VARIANTS)}; default: {VARIANTS[0]}.")
]
OuterRate = Annotated[float | None, typer.Option(help="Rate of diloco's outer step; default: 0.7.")]
OuterMomentum = Annotated[float | None, typer.Option(help="Nesterov momentum of diloco's outer step; default: 0.9.")]
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
Trace = Annotated[
    str | None, typer.Option(help="Record these steps of all ranks as a timeline, for example steps=20-30.")
]
BatchMode = Annotated[
    str, typer.Option(help="Whose batch_size the net gives: per-worker (as Caffe's multi-GPU) or global.")
]
LargeBatch = Annotated[
    int | None, typer.Option(help="Samples of a step, all workers together, by the large-batch recipe; same epochs.")
]
RateScaling = Annotated[
    str | None,
    typer.Option(help=f"How the rate grows with --large-batch: {', '.join(RATE_SCALINGS)}; default: firecaffe."),
]
WarmUpSteps = Annotated[
    int | None, typer.Option(help="Steps over which it rises to that, with --large-batch; default: a tenth of all.")
]


# --moving-rate, --overlap, --variant, --outer-rate, --outer-momentum, --owner
Rates = tuple[float | None, str | None, str | None, float | None, float | None, str | None]


def sharing_of(name: str, collective: str, bucket: str, sync_period: int | None, rates: Rates) -> StrategyConfig:
    """The strategy that the flags ask for; --bucket auto, the default, is nothing to one that has no buckets."""
    size = None if bucket == AUTO else parse_bucket(bucket, "'auto', 'model', 'layer'")
    return StrategyConfig(
        name, collective, size, sync_period, *rates, automatic_buckets=bucket == AUTO and name == "sync"
    )


def count_of(flag: str, text: str | None) -> int | None:
    """A number, or None for `auto` and where nothing is given; InputError for anything else."""
    if text in (None, AUTO):
        return None
    if not text.isdecimal() or not text.isascii():
        raise InputError(f"{flag}: got {text!r}; give a number or 'auto'")
    return int(text)


def large_batch_of(
    batch_size: int | None, rate_scaling: str | None, warm_up_steps: int | None
) -> large.LargeBatch | None:
    """The recipe that three flags ask for; InputError where the last two stand alone."""
    if batch_size is None:
        for flag, value in (("--rate-scaling", rate_scaling), ("--warm-up-steps", warm_up_steps)):
            if value is not None:
                raise InputError(f"{flag} {value}: belongs to --large-batch; give that too, or leave it out")
        return None
    return large.LargeBatch(batch_size, rate_scaling or "firecaffe", warm_up_steps)


def trace_of(written: str | None) -> TraceWindow | None:
    """The steps that --trace names; InputError where it names none."""
    return None if written is None else TraceWindow.parse(written)
