"""Lightning: strategies for its `Trainer` and for Fabric whose ranks share as `samovar.replicate` does."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from lightning.fabric.strategies.ddp import DDPStrategy as FabricDDPStrategy
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import BaseFinetuning, LambdaCallback, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from samovar.api.replica import Replica
from samovar.api.state import from_arrays
from samovar.core.errors import InputError
from samovar.integrations.shared import SharedTraining
from samovar.strategies.ours import StrategyName

# The first of all callbacks: the others see the weights that count when training ends.
_ENDING = LambdaCallback(on_train_end=lambda trainer, _module: trainer.strategy.on_train_end())


class _Parts:
    """Whether another backward pass of the same step follows, and whether there was one since the last step."""

    def __init__(self) -> None:
        self.more = self.has_passed = False

    @contextmanager
    def no_backward_sync(self, module: Any, enabled: bool = True) -> Iterator[None]:  # noqa: ARG002
        self.more = enabled
        try:
            yield
        finally:
            self.more = False


class _Sharing:
    """Before a strategy of Lightning's among a class's bases: the ranks share as `samovar.replicate` does."""

    def __init__(
        self, strategy: StrategyName = "sync", settings: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._training = SharedTraining(strategy, settings)
        self._parts = _Parts()
        self._backward_sync_control = self._parts  # Fabric asks here, and Trainer calls block_backward_sync()
        self._shown = ExitStack()

    @property
    def replica(self) -> Replica:
        return self._training.replica

    def process_dataloader(self, dataloader: Any) -> Any:
        """As Lightning's; the wait for its batches shows in the figures."""
        processed = super().process_dataloader(dataloader)  # type: ignore[misc]
        return self._training.watched(processed, getattr(processed, "batch_size", None))


class SamovarStrategy(_Sharing, DDPStrategy):
    """`Trainer(strategy=SamovarStrategy("sync-easgd"))`: `strategy` and `settings` as `samovar.replicate` takes them.

    Processes, samplers, logging and checkpoints are those of Lightning's DDPStrategy. Validation, checkpoints and the
    end of training have the weights that count. Raises InputError if there are several optimizers, where the module has
    a `backward` of its own, and for a callback that unfreezes parameters. One that averages weights needs `sync`.
    """

    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        if trainer.state.fn is not TrainerFn.FITTING:
            return
        module: Any = self.lightning_module
        if type(module).backward is not LightningModule.backward or len(self.optimizers) != 1:
            raise InputError(
                f"SamovarStrategy: {type(module).__name__} has {len(self.optimizers)} optimizers, or a backward() of "
                "its own; one optimizer and Lightning's backward() can be shared"
            )
        if late := [type(callback).__name__ for callback in trainer.callbacks if isinstance(callback, BaseFinetuning)]:
            raise InputError(
                f"SamovarStrategy: {late[0]} unfreezes parameters in the middle, and those that train are shared from "
                "the start; leave the callback out, and unfreeze between two calls of fit()"
            )
        self._training.train(module)
        self._training.begin([_inner(optimizer) for optimizer in self.optimizers])
        config, averaging = self.replica.config, (StochasticWeightAveraging, WeightAveraging)
        found = [type(callback).__name__ for callback in trainer.callbacks if isinstance(callback, averaging)]
        if found and (config.exchanges_weights or config.needs_center):
            raise InputError(
                f"SamovarStrategy: {found[0]} puts its mean into the model at the end, and {config.name} the weights "
                "that count over it; choose sync, or leave the callback out"
            )
        if _ENDING not in trainer.callbacks:
            trainer.callbacks.insert(0, _ENDING)

    def on_train_start(self) -> None:
        """Begin again if LearningRateFinder has trained to an end already."""
        if self._training.is_finished:
            self._training.begin([_inner(optimizer) for optimizer in self.optimizers])

    def configure_ddp(self) -> None:
        """No wrapper: the replica shares."""

    def block_backward_sync(self) -> Any:
        return self._parts.no_backward_sync(self.lightning_module)

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        module: Any = self.lightning_module
        loss = self.precision_plugin.pre_backward(closure_loss, module)
        self._parts.has_passed = True
        self.replica.backward(loss, *args, more=self._parts.more, **kwargs)
        return self.precision_plugin.post_backward(loss, module)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        result, own, module = closure(), _inner(optimizer), self.lightning_module
        has_passed, self._parts.has_passed = self._parts.has_passed, False
        if module is not None and module.automatic_optimization and not has_passed:
            return result  # training_step gave None, or StochasticWeightAveraging only runs the data through
        step = super().optimizer_step
        return self._training.step(lambda: step(own, lambda: result, model, **kwargs))

    def on_validation_start(self) -> None:
        self._shown.enter_context(self._training.evaluating())

    def on_validation_end(self) -> None:
        self._shown.close()

    def on_train_end(self) -> None:
        self._training.finish()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        with self._training.evaluating():
            return dict(from_arrays(super().lightning_module_state_dict()))

    def teardown(self) -> None:
        self._shown.close()
        self._training.forget()
        super().teardown()


class FabricStrategy(_Sharing, FabricDDPStrategy):
    """`Fabric(strategy=FabricStrategy("sync-easgd"))`: `strategy` and `settings` are those of `replicate`.

    `fabric.setup(model, optimizer)`, its loaders, `fabric.backward` and `fabric.no_backward_sync` stay as they are.
    `replica` shows the weights that count (`evaluating()`, `finish()`). `setup` takes the model with its optimizer.
    """

    def setup_module_and_optimizers(self, module: nn.Module, optimizers: Any, scheduler: Any = None) -> Any:
        self._training.train(module)
        self._training.begin(optimizers)
        return module, optimizers, scheduler

    def setup_module(self, module: nn.Module) -> Any:
        """As it is: `setup` with its optimizer shares it."""
        return module

    def backward(self, tensor: torch.Tensor, module: Any, *args: Any, **kwargs: Any) -> None:
        self.precision.pre_backward(tensor, module)
        scaler = getattr(self.precision, "scaler", None)
        loss = tensor if scaler is None else scaler.scale(tensor)
        self.replica.backward(loss, *args, more=self._parts.more, **kwargs)
        self.precision.post_backward(tensor, module)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        result, step = None if closure is None else closure(), super().optimizer_step
        stepped = self._training.step(lambda: step(optimizer, **kwargs))
        return stepped if closure is None else result


def _inner(optimizer: Any) -> Any:
    return optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
