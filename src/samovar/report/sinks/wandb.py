"""Weights & Biases."""

from collections.abc import Mapping
from typing import Any

import wandb

from samovar.report.sinks import Sink, scalars

_STEP = "step"


class WandB(Sink):
    """Log to the run that the program has opened (`wandb.init`), else to a new one of `project`.

    Curves are drawn over "step", the steps of the training.
    """

    def __init__(self, project: str | None = None) -> None:
        self._project = project
        self._run: Any = None
        self._is_own = False

    def begin(self, run: Mapping[str, object]) -> None:
        self._is_own = wandb.run is None
        self._run = wandb.init(project=self._project) if self._is_own else wandb.run
        self._run.config.update(dict(run), allow_val_change=True)
        self._run.define_metric(_STEP, hidden=True)
        for kind in ("train", "test", "workers"):
            self._run.define_metric(f"{kind}*", step_metric=_STEP)

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        self._run.log({_STEP: step, **dict(scalars(kind, values))})

    def close(self) -> None:
        if self._is_own and self._run is not None:
            self._run.finish()
