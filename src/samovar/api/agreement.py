"""At the start, ranks show each other that they train the same model by the same rule."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping

import numpy as np
from torch import nn

from samovar.api.process_group import ProcessGroup, ReplicaSeat
from samovar.collectives.records import differing_ranks, digest_record
from samovar.core.errors import InputError
from samovar.frontends.torch.parameters import description, layout_of
from samovar.strategies.config import StrategyConfig

_COMPARED = ("model (its tensors' names, shapes, types or order, or which of them train)", "settings")


def require_agreement(
    team: ProcessGroup,
    seat: ReplicaSeat,
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    config: StrategyConfig,
) -> None:
    """InputError, naming the ranks, where the model, what trains of it, or the settings differ from rank 0's."""
    if team.group.world_size == 1:
        return
    described = json.dumps(description(model, parameters)) + layout_of(parameters).fingerprint()
    settings = json.dumps(dataclasses.asdict(config))
    digests = [digest_record(hashlib.sha256(text.encode()).digest()) for text in (described, settings)]
    records = team.collectives.records(sum(map(len, digests)))
    records.post([word for digest in digests for word in digest])
    rows = records.collect(seat.deadline())
    for what, part in zip(_COMPARED, np.split(rows, len(digests), axis=1), strict=True):
        if differing := differing_ranks(part):
            raise InputError(
                f"replicate: rank {team.group.rank}: ranks {differing} differ from rank 0 in their {what}; run the "
                "same script with the same arguments on all ranks"
            )
