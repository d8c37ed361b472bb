"""`samovar.replicate`: a user's own training loop on several ranks."""

import sys
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from samovar.api.join import Joined, join_group
from samovar.api.replica import Replica
from samovar.api.team import Team
from samovar.config import DEFAULT_TIMEOUT_S
from samovar.core.errors import InputError
from samovar.strategies import defaults
from samovar.strategies.config import AUTO, StrategyConfig, parse_bucket

_BETWEEN_HOSTS_BUCKET_BYTES = 1 << 23


class _Process:
    """What this process joined, once."""

    def __init__(self) -> None:
        self._joined: Joined | None = None
        self._team: Team | None = None
        self._collective = AUTO

    def team(self, collective: str, timeout_s: float) -> tuple[Joined, Team]:
        if self._joined is None or self._team is None:
            self._joined = join_group(timeout_s, collective)
            self._team = Team(self._joined.collectives, timeout_s)
            self._collective = collective
        elif collective not in (AUTO, self._collective):
            raise InputError(
                f"replicate: collective {collective!r}, but this process joined with {self._collective!r}: give it in "
                "the first call"
            )
        return self._joined, self._team


_process = _Process()


def replicate(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    strategy: str = "sync",
    *,
    bucket_size: int | str | None = None,
    collective: str = AUTO,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    **settings: Any,
) -> Replica:
    """Train `model` with `optimizer` on all ranks of this job; every rank calls this, with the same settings.

    Rank 0's weights and buffers become everybody's. `strategy` is one of `sync`, `local-sgd`, `diloco`, `sync-easgd`;
    `settings` are its own: `sync_period_steps`, `moving_rate`, `overlap`, `variant`, `outer_rate`, `outer_momentum`,
    `compress` (gradients as "bf16", "int8", "top-k" or "1-bit", where the first steps show that it helps;
    `always_compresses=True` from the first step on).
    `bucket_size` in bytes (or "layer", "model") is what `sync` exchanges at once; by default the whole model on
    one host, 8 MiB between hosts. No wait for other ranks lasts longer than `timeout_s`.

    The first call brings the ranks together: those of `samovar run`, torchrun, SLURM or MPI, or this one process.
    Raises InputError where model, optimizer or settings cannot be used or differ between ranks, DeadlineExceeded.
    """
    if not 0 < timeout_s < 86_400:
        raise InputError(f"replicate: timeout_s is {timeout_s}; give more than 0 and less than a day")
    config = _config(strategy, collective, bucket_size, settings)
    joined, team = _process.team(collective, timeout_s)
    if len(joined.hosts) > 1 and strategy == "sync" and bucket_size is None:
        config = replace(config, bucket_size_bytes=_BETWEEN_HOSTS_BUCKET_BYTES)
    replica = Replica(model, optimizer, team, config, timeout_s)
    if replica.is_first:
        _describe(replica, joined)
    return replica


def _config(strategy: str, collective: str, bucket_size: int | str | None, settings: dict[str, Any]) -> StrategyConfig:
    size = parse_bucket(bucket_size) if isinstance(bucket_size, str) else bucket_size
    try:
        config = StrategyConfig(name=strategy, collective=collective, bucket_size_bytes=size, **settings)
    except TypeError as error:
        given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        known = "sync_period_steps, moving_rate, overlap, variant, outer_rate, outer_momentum, compress"
        raise InputError(f"replicate: got {given}; one is unknown or of a wrong type; known are {known}") from error
    if config.has_owners:
        raise InputError(
            "replicate: overlap='full' updates each bucket on one rank, as soon as it is summed; a torch optimizer "
            "updates all at once; choose overlap='backward'"
        )
    if config.needs_center:
        raise InputError(
            f"replicate: {config.name} lets workers step at different speeds, which `samovar train --strategy "
            f"{config.name}` does; in a loop of your own choose sync, local-sgd, sync-easgd or diloco"
        )
    return config


def _describe(replica: Replica, joined: Joined) -> None:
    for sentence in defaults.warnings(replica.config, replica.world_size):
        warnings.warn(sentence, stacklevel=3)
    if replica.world_size > 1:
        hosts = "; ".join(str(host) for host in joined.hosts)
        sys.stderr.write(f"samovar: {defaults.described(replica.config)}; {replica.world_size} ranks on {hosts}\n")
