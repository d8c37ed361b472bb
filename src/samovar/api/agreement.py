"""Checks before training: all ranks have the same model and settings, and momentum is kept in one place."""

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from samovar.api.process_group import Announcer, ProcessGroup
from samovar.collectives.engine import differing_ranks, digest_record
from samovar.core.errors import InputError
from samovar.frontends.torch.optimizers import Optimizers
from samovar.frontends.torch.parameters import description, layout_of, saved_buffers
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import MomentumShares, shared_momentum
from samovar.strategies.recipe import Recipe

_COMPARED = ("model (its tensors' names, shapes, types or order, or which of them train)", "settings")


def require_agreement(
    processes: ProcessGroup,
    announcer: Announcer,
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    config: StrategyConfig,
    recipe: Recipe | None,
) -> tuple[float, list[torch.Tensor]]:
    """The number of this run, drawn by rank 0, and the tensors that rank 0 sends at the start.

    These are all, or those that are saved if shapes of the others differ between ranks.

    Raises InputError that names the ranks whose model, trained parameters or settings differ from rank 0's.
    """
    run = float(secrets.randbits(48))
    if processes.group.world_size == 1:
        return run, []
    described = json.dumps(description(model, parameters)) + layout_of(parameters).fingerprint()
    settings = json.dumps([dataclasses.asdict(config), recipe is not None])
    shapes = json.dumps([[name, list(b.shape), str(b.dtype)] for name, b in model.named_buffers()])
    digests = [digest_record(hashlib.sha256(text.encode()).digest()) for text in (described, settings, shapes)]
    records = processes.collectives.records(1 + sum(map(len, digests)))
    records.post([run, *(word for digest in digests for word in digest)])
    rows = records.collect(announcer.deadline())
    *compared, of_shapes = np.split(rows[:, 1:], len(digests), axis=1)
    for what, part in zip(_COMPARED, compared, strict=True):
        if differing := differing_ranks(part):
            raise InputError(
                f"replicate: rank {processes.group.rank}: ranks {differing} differ from rank 0 in their {what}; run "
                "the same script with the same arguments on all ranks"
            )
    buffers = saved_buffers(model) if differing_ranks(of_shapes) else model.buffers()
    return float(rows[0, 0]), [*model.parameters(), *buffers]


def with_momentum(config: StrategyConfig, optimizers: Optimizers, num_workers: int) -> MomentumShares:
    """The places of momentum, with the unresolved `config` and notices for the user.

    Raises InputError if the strategy forbids an optimizer's momentum, or needs one.
    """
    momentum = max((float(group.get("momentum") or 0.0) for group in optimizers.param_groups), default=0.0)
    first_moment = max((_first_moment(group) for group in optimizers.param_groups), default=0.0)
    if config.traits.needs_momentum:
        return shared_momentum(config, momentum or first_moment, num_workers)
    shares = shared_momentum(config, momentum, num_workers)
    if shares.worker != momentum or (shares.is_nesterov and not optimizers.looks_ahead):
        raise InputError(f"replicate: {shares.refusal}")
    if config.traits.adds_steps and first_moment:
        notice = (
            f"{config.name}: {optimizers.title} averages gradients over steps (betas). At a center that adds up steps, "
            f"this acts as a momentum of each worker; betas=(0.0, ...) leaves it out"
        )
        return replace(shares, notices=(notice,))
    return shares


def _first_moment(group: Mapping[str, Any]) -> float:
    """Adam's beta1 and similar settings; 0 if the group has none."""
    betas = group.get("betas") or (0.0,)
    return float(betas[0] or 0.0)
