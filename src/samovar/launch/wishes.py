"""The figures that the environment of a user's script asks for."""

import os
from dataclasses import dataclass

METRICS, TRACE = "SAMOVAR_METRICS", "SAMOVAR_TRACE"


@dataclass(frozen=True, slots=True)
class FigureWishes:
    """SAMOVAR_METRICS and SAMOVAR_TRACE, as `samovar run` sets them; None if they are not set."""

    metrics: str | None
    trace: str | None


def figure_wishes() -> FigureWishes:
    return FigureWishes(os.environ.get(METRICS) or None, os.environ.get(TRACE) or None)
