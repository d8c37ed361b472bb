"""The flags of a strategy and of what a step is made of."""

from typing import Annotated

import typer

from samovar.strategies.config import OWNERS, STRATEGIES, VARIANTS

Strategy = Annotated[str, typer.Option(help=f"How workers share what they learn: {', '.join(STRATEGIES)}.")]
Bucket = Annotated[str, typer.Option(help="What sync exchanges as one: model, layer, or bytes.")]
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
BatchMode = Annotated[
    str, typer.Option(help="Whose batch_size the net gives: per-worker (as Caffe's multi-GPU) or global.")
]
