"""The part that all adapters share: one replica of the model that a framework trains."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from samovar.api.replica import Replica
from samovar.api.replicate import replicate
from samovar.core.errors import InputError
from samovar.strategies.ours import StrategyName
from samovar.strategies.traits import NONE

_WATCHED = "samovar_watches"


class SharedTraining:
    """The replica of one model and its optimizers. `settings` are those of `samovar.replicate`.

    Weights that count are shown while a framework evaluates or saves, which all ranks do at the same step.
    """

    def __init__(self, strategy: StrategyName, settings: Mapping[str, Any] | None) -> None:
        self._strategy: StrategyName = strategy
        self._settings = dict(settings or {})
        if self._settings.get("recipe", NONE) != NONE:
            raise InputError(
                f"recipe={self._settings['recipe']!r}: divides batches in replica.shard, and a framework divides its "
                "data itself; leave it out, and give a worker's batch and settings yourself"
            )
        self.models: list[nn.Module] = []
        self._replica: Replica | None = None
        self.is_finished = self._is_shown = False

    @property
    def replica(self) -> Replica:
        """Raises InputError if nothing was prepared for training yet."""
        if self._replica is None:
            raise InputError("no replica yet: the framework has not set up a model and an optimizer for training")
        return self._replica

    def train(self, model: nn.Module) -> None:
        """The model that is to be trained. Given again, it starts again."""
        if model in self.models:
            self.close()
        self.models = [*(other for other in self.models if other is not model), model]

    def begin(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """All ranks come here. Raises InputError unless there are one model and one optimizer."""
        if len(self.models) != 1 or len(optimizers) != 1:
            raise InputError(
                f"got {len(self.models)} models and {len(optimizers)} optimizers; one model and its optimizer "
                "train in a framework's loop: call samovar.replicate in a loop of your own for others"
            )
        self.close()
        self._replica = replicate(self.models[0], list(optimizers), self._strategy, **self._settings)
        self.is_finished = False

    @property
    def has_begun(self) -> bool:
        return self._replica is not None

    def watched(self, loader: Any, num_samples: int | None) -> Any:
        """The loader as it is, whose batches of `num_samples` show in the figures. It becomes one of a subclass."""
        kind = type(loader)
        if hasattr(kind, _WATCHED) or not hasattr(kind, "__iter__"):
            return loader

        def shown(its: Any) -> Iterator[Any]:
            return self.batches(kind.__iter__(its), num_samples or 0)

        # Accelerate's loaders show the class of the loader that they hold, and let nobody set it.
        with suppress(TypeError):  # a generator, for example, has no subclasses
            vars(object)["__class__"].__set__(loader, type(kind.__name__, (kind,), {"__iter__": shown, _WATCHED: True}))
        return loader

    def batches(self, loader: Iterator[Any], num_samples: int) -> Iterator[Any]:
        """Its batches, which show in the figures once there is a replica."""
        return loader if self._replica is None else self._replica.batches(loader, num_samples)

    def step(self, apply: Callable[[], Any]) -> Any:
        """The replica's step around the framework's; returns the result of the latter."""
        results: list[Any] = []
        self.replica.step(lambda: results.append(apply()))
        return results[0]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The weights that count are in the model; its own before training. Inside itself it does nothing."""
        if self._replica is None or self.is_finished or self._is_shown or not self._replica.step_count:
            yield
            return
        with self._replica.evaluating():
            self._is_shown = True
            try:
                yield
            finally:
                self._is_shown = False

    def finish(self) -> None:
        """At the end of training, and once: the weights that count stay in the model, on all ranks."""
        if self._replica is not None and not self.is_finished and self._replica.step_count:
            self._replica.finish()
        self.is_finished = True

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()
            self._replica = None

    def forget(self) -> None:
        """Close, so that another model may be trained."""
        self.close()
        self.models = []
