"""Hugging Face Accelerate: `Accelerator` whose ranks share by a strategy, in place of DistributedDataParallel."""

from collections.abc import Mapping
from typing import Any

import accelerate
import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from samovar.api.replica import Replica
from samovar.integrations.shared import SharedTraining
from samovar.strategies.ours import StrategyName


class SharedOptimizer(AcceleratedOptimizer):
    """Steps through the replica, after the last part of a batch."""

    training: SharedTraining

    def step(self, closure: Any = None) -> None:
        if self.gradient_state.sync_gradients:
            self.training.step(lambda: AcceleratedOptimizer.step(self, closure))


class Accelerator(accelerate.Accelerator):
    """`accelerate.Accelerator` with `strategy` and its `settings`, as `samovar.replicate` takes them.

    Loaders, mixed precision, accumulation, gathering and logging are Accelerate's. `replica` exists once a model and
    its optimizers are prepared. `with accelerator.evaluating():` shows the weights that count, and `finish()` leaves
    them in the model. Raises InputError if two models, or two optimizers, are prepared for training.
    """

    def __init__(
        self, *args: Any, strategy: StrategyName = "sync", settings: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.training = SharedTraining(strategy, settings)
        super().__init__(*args, **kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """As Accelerate's; with the model and the optimizers there, all ranks begin to share."""
        prepared = super().prepare(*args, **kwargs)
        optimizers = [optimizer.optimizer for optimizer in self._optimizers]
        given = len(self.training.models), len(optimizers)
        if all(given) and (not self.training.has_begun or given != (1, 1)):
            self.training.begin(optimizers)
        return prepared

    @property
    def replica(self) -> Replica:
        return self.training.replica

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Any:
        """As Accelerate's, without its wrapper: what is prepared for training is shared by the replica."""
        prepared = super().prepare_model(model, device_placement=device_placement, evaluation_mode=True)
        if not evaluation_mode and any(parameter.requires_grad for parameter in model.parameters()):
            self.training.train(self.unwrap_model(prepared, keep_torch_compile=False))
        return prepared

    def prepare_data_loader(self, data_loader: Any, *args: Any, **kwargs: Any) -> Any:
        """As Accelerate's; the wait for its batches shows in the figures."""
        prepared = super().prepare_data_loader(data_loader, *args, **kwargs)
        num_samples = getattr(prepared, "total_batch_size", None)
        return self.training.watched(prepared, num_samples and num_samples // self.num_processes)

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None) -> Any:
        prepared = super().prepare_optimizer(optimizer, device_placement)
        prepared.__class__ = SharedOptimizer
        prepared.training = self.training
        return prepared

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """The gradients of this part, exchanged at the last part of a batch."""
        loss = loss / self.gradient_accumulation_steps
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        self.replica.backward(scaled, more=not self.sync_gradients, **kwargs)

    def free_memory(self, *objects: Any) -> Any:
        """As Accelerate's; another model may be prepared then."""
        self.training.forget()
        return super().free_memory(*objects)

    def save_state(self, *args: Any, **kwargs: Any) -> Any:
        """As Accelerate's, with the weights that count: all ranks call it."""
        with self.evaluating():
            return super().save_state(*args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """As Accelerate's, with the weights that count: all ranks call it."""
        with self.evaluating():
            super().save_model(*args, **kwargs)

    def evaluating(self) -> Any:
        return self.training.evaluating()

    def finish(self) -> None:
        self.training.finish()
