"""Hugging Face Transformers: `Trainer` whose ranks share by a strategy, in place of DistributedDataParallel."""

from collections.abc import Mapping
from typing import Any

import transformers

from samovar.integrations.accelerate import Accelerator
from samovar.integrations.shared import SharedTraining
from samovar.strategies.ours import StrategyName


class SharingMixin:
    """Before any Trainer among a class's bases: `class Mine(SharingMixin, Seq2SeqTrainer)`.

    `strategy` and `settings` are those of `samovar.replicate`. Evaluation, saved checkpoints and the end of training
    have the weights that count: the strategy's center, or the weights that all ranks share.
    """

    accelerator: Any
    callback_handler: Any

    def __init__(
        self, *args: Any, strategy: StrategyName = "sync", settings: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.training = SharedTraining(strategy, settings)
        super().__init__(*args, **kwargs)
        ending: Any = transformers.TrainerCallback()  # the first of all: the others see the weights that count
        ending.on_train_end = lambda *_given, **_kept: self.training.finish()
        self.callback_handler.callbacks.insert(0, ending)

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        self.accelerator.__class__ = Accelerator
        self.accelerator.training = self.training

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self.training.forget()  # what an interrupt has left, or a model of model_init
        return super().train(*args, **kwargs)  # type: ignore[misc]

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with self.training.evaluating():
            return super().evaluate(*args, **kwargs)  # type: ignore[misc]

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with self.training.evaluating():
            return super().predict(*args, **kwargs)  # type: ignore[misc]

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        with self.training.evaluating():
            super().save_model(*args, **kwargs)  # type: ignore[misc]

    def _load_best_model(self) -> None:
        self.training.finish()
        super()._load_best_model()  # type: ignore[misc]


class Trainer(SharingMixin, transformers.Trainer):
    """`transformers.Trainer` with `strategy` and `settings`."""
