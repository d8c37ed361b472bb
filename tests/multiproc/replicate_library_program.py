"""One rank: `replicate_library_program.py TRANSPORT WHAT FOLDER`.

in-step, own-speed, groups   trains a small net by these strategies, and writes the hashes of its weights to
                             FOLDER/RANK.json
fail                         rank 1 raises an error in its fifth step
early                        rank 1 takes no part in the fifth step, and ends well
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import samovar
from tests.multiproc.replicate_nets import batches, perceptron, sgd

STEPS = 6
IN_STEP: dict[str, dict[str, Any]] = {
    "sync": {"overlap": "backward", "bucket": 64},
    "sync-easgd": {"sync_period": 2, "overlap": "period"},
    "diloco": {"sync_period": 2},
    "round-robin-easgd": {"sync_period": 2},
}
STRATEGIES: dict[str, dict[str, dict[str, Any]]] = {
    "in-step": IN_STEP,
    "own-speed": {"shm-easgd": {"sync_period": 2}, "async-easgd": {"sync_period": 3}},
    "groups": {"hybrid-easgd": {"sync_period": 2, "group_size": 2}},
}


def train(transport: str, strategy: Any, what: str, **settings: Any) -> tuple[int, str]:
    model = perceptron()
    optimizer = sgd(model)
    replica = samovar.replicate(
        model, optimizer, strategy=strategy, collective="ring", transport=transport, timeout_s=30, **settings
    )
    for step, (x, y) in enumerate(batches(replica.rank, STEPS)):
        if what in ("fail", "early") and replica.rank == 1 and step == 4:
            assert what == "early", "a mistake of rank 1"
            sys.exit(0)
        optimizer.zero_grad()
        replica.backward(F.cross_entropy(model(x), y))
        replica.step()
    replica.finish()
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    assert bool(torch.isfinite(weights).all())
    return replica.rank, hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def main() -> None:
    transport, what, folder = sys.argv[1:]
    hashes = {}
    for strategy, settings in STRATEGIES.get(what, IN_STEP).items():
        rank, hashes[strategy] = train(transport, strategy, what, **settings)
    Path(folder, f"{rank}.json").write_text(json.dumps(hashes))


if __name__ == "__main__":
    main()
