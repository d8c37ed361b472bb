"""A finished loop and its prediction: what `samovar.predict.foresight` needs of a run of `samovar.replicate`."""

from collections.abc import Sequence

import torch
from torch import nn

from samovar.api.figures_wanted import say
from samovar.launch.wishes import state_folder
from samovar.predict.kept import Kept, Ran, Subject, foreseen
from samovar.report.profile import Profile
from samovar.strategies.config import StrategyConfig


def keep_profile(model: nn.Module, profile: Profile) -> None:
    """For later runs of this model on this machine."""
    if (subject := _subject(model)) is not None:
        Kept(state_folder()).keep_profile(subject, profile)


def compare(
    model: nn.Module,
    config: StrategyConfig,
    places: tuple[int, int],
    mean_step: tuple[float, int],
    batch_size: float,
    rates: Sequence[float],
    busy: float,
) -> None:
    """Say how far a step's time is from its prediction, if there can be one.

    `places` are the ranks, and the most on a host. `mean_step` has the seconds, and of how many steps. `rates` are the
    samples per second of workers that do not wait for each other. `busy` is that of `Ran`.
    """
    (workers, ranks_per_host), (step_s, num_steps) = places, mean_step
    subject = _subject(model)
    if subject is None:
        return
    if config.is_async:
        if len(rates) < workers or not batch_size or min(rates) <= 0:
            return
        step_s = workers * batch_size / sum(rates)
    found = foreseen(Ran(subject, config, workers, ranks_per_host, batch_size, step_s, num_steps, busy=busy))
    if found is not None:
        say(str(found))


def _subject(model: nn.Module) -> Subject | None:
    """None for a model on a device: what is kept is for the cores of this machine."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if any(parameter.device.type != "cpu" for parameter in trained):
        return None
    num_parameters = sum(parameter.numel() for parameter in trained)
    return Subject(type(model).__name__, num_parameters, torch.get_num_threads())
