"""At the start, ranks show each other that they train the same model by the same rule."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping

import numpy as np
from torch import nn

from samovar.api.team import Seat, Team
from samovar.core.errors import InputError
from samovar.frontends.torch.parameters import description, layout_of
from samovar.strategies.config import StrategyConfig

_COMPARED = ("model (its tensors' names, shapes, types or order, or which of them train)", "settings")
_WORDS = 8  # a SHA-256 as numbers of 32 bits, which float64 holds exactly


def require_agreement(
    team: Team, seat: Seat, model: nn.Module, parameters: Mapping[str, nn.Parameter], config: StrategyConfig
) -> None:
    """InputError, naming the ranks, where the model, what trains of it, or the settings differ from rank 0's."""
    if team.group.world_size == 1:
        return
    described = json.dumps(description(model, parameters)) + layout_of(parameters).fingerprint()
    settings = json.dumps(dataclasses.asdict(config))
    records = team.collectives.records(2 * _WORDS)
    records.post([*_words(described), *_words(settings)])
    rows = records.collect(seat.deadline())
    for part, what in enumerate(_COMPARED):
        words = rows[:, part * _WORDS : (part + 1) * _WORDS]
        differing = [rank for rank in range(len(rows)) if (words[rank] != words[0]).any()]
        if differing:
            raise InputError(
                f"replicate: rank {team.group.rank}: ranks {differing} differ from rank 0 in their {what}; run the "
                "same script with the same arguments on all ranks"
            )


def _words(text: str) -> list[float]:
    digest = hashlib.sha256(text.encode()).digest()
    words: list[float] = np.frombuffer(digest, dtype=">u4").astype(float).tolist()
    return words
