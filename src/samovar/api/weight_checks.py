"""Checks of a replica's weights: that they are finite, that ranks keep them equal, and that all of them train."""

import warnings
from collections.abc import Mapping

from torch import nn

from samovar.api.figures import ReplicaFigures
from samovar.api.figures_wanted import warn
from samovar.api.process_group import Announcer, ProcessGroup
from samovar.core.errors import NotFinite
from samovar.core.layout import LOOK_EVERY_STEPS
from samovar.frontends.torch.late import LateLook
from samovar.frontends.torch.neighbours import unclaimed
from samovar.frontends.torch.optimizers import Optimizers
from samovar.frontends.torch.parameters import device_of, digest_of, first_not_finite, require_kept
from samovar.strategies.config import StrategyConfig


class WeightChecks:
    """The checks of one replica, on this rank. Ranks compare weights every `compare_steps` steps, if that is given."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        optimizers: Optimizers,
        processes: ProcessGroup,
        announcer: Announcer,
        config: StrategyConfig,
        compare_steps: int | None,
    ) -> None:
        self._model, self._parameters, self._optimizers = model, parameters, optimizers
        self._rank, self._announcer = processes.group.rank, announcer
        self._is_async = config.is_async
        self._keeps_equal = not config.exchanges_weights and not config.needs_center and processes.group.world_size > 1
        self._compare_steps = compare_steps
        is_elastic = config.traits.setting("moving_rate") is not None
        self._first_exchange = (config.sync_period_steps or 0) if is_elastic else 0
        self._late_look = LateLook()  # on a device

    def stepped(self, step: int, figures: ReplicaFigures) -> None:
        """After each step: look at the weights if it is time. The first step shows other weights, rates or momentum."""
        if step % LOOK_EVERY_STEPS == 0:
            if device_of(self._parameters) is None:
                self.require_finite(step, figures)
            else:
                self._look_later(step, figures)
        if step == LOOK_EVERY_STEPS and not self._optimizers.has_stepped and not self._rank:
            warn(
                f"the function given to step() stepped no optimizer in {step} steps; give none, or one that updates "
                "the weights, such as lambda: scaler.step(optimizer), and compute gradients before step()"
            )
        if step % LOOK_EVERY_STEPS == 1:
            require_kept(self._model, self._parameters)
        if step == 1 or (self._compare_steps and step % self._compare_steps == 0):
            self.show_digest()

    def require_finite(self, step: int, figures: ReplicaFigures) -> None:
        """Raise NotFinite if ranks train in step and a weight is infinite or NaN; a center looks by itself."""
        if not self._is_async and (name := first_not_finite(self._parameters)):
            self._refuse(name, step, figures)

    def before_evaluation(self, step: int, figures: ReplicaFigures) -> None:
        """Require finite weights, let ranks compare equal ones, and warn if the center has learned nothing yet."""
        self.require_finite(step, figures)
        require_kept(self._model, self._parameters)
        self.show_digest()
        first, self._first_exchange = self._first_exchange, 0
        if 0 < step < first and not self._rank:
            warn(
                f"the center that is evaluated lacks all steps so far: the first exchange comes after step {first}, "
                f"and this is step {step}; make more steps, or give a shorter sync_period"
            )

    def _look_later(self, step: int, figures: ReplicaFigures) -> None:
        """Look without a wait for the device: each look raises what the one before found."""
        if self._is_async:
            return
        if (found := self._late_look.look(step, self._parameters)) is not None:
            self._refuse(found[1], found[0], figures)

    def _refuse(self, name: str, step: int, figures: ReplicaFigures) -> None:
        found = (group.get("lr") for group in self._optimizers.param_groups)
        rates = sorted({float(rate) for rate in found if rate is not None})
        raise NotFinite(
            f"rank {self._rank}: the weights of {name} are not finite after step {step} (loss {figures.loss:.4g}, "
            f"learning rate {', '.join(f'{rate:.4g}' for rate in rates)}); lower the learning rate, or look at this "
            "rank's data"
        )

    def show_digest(self) -> None:
        """Let ranks compare weights that the strategy keeps equal, at the next call that all make."""
        if self._keeps_equal:
            self._announcer.uneven.show_digest(digest_of(self._parameters))


def name_unclaimed(model: nn.Module) -> None:
    """Warn of parameters that require gradients and are in no optimizer at the first step."""
    if names := unclaimed(model):
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        warnings.warn(
            f"{len(names)} parameter(s) require gradients but are in no optimizer, and stay as they are: {shown}",
            stacklevel=4,
        )
