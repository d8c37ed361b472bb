"""Rank program: runs that are saved in the middle of an epoch, and go on in other replicas."""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from samovar.api.process_group import ProcessGroup
from tests.multiproc.replicate_nets import replicated
from tests.multiproc.replicate_ranks import Scenario, serve_rank

NUM_SAMPLES, EPOCHS = 45, 2
SETTINGS: dict[str, dict[str, Any]] = {
    "sync": {},
    "local-sgd": {"sync_period_steps": 3},
    "sync-easgd": {"sync_period_steps": 3},
}


class Run:
    def __init__(self, process_group: ProcessGroup, strategy: str) -> None:
        torch.manual_seed(1)
        self.model = nn.Linear(1, 1)
        self.replica = replicated(process_group, self.model, name=strategy, **SETTINGS[strategy])
        data = TensorDataset(torch.arange(float(NUM_SAMPLES))[:, None] / NUM_SAMPLES)
        self.shard = self.replica.shard(DataLoader(data, batch_size=3, shuffle=True))
        self.samples: list[list[int]] = []
        self.states: list[dict[str, Any]] = []

    def train(self) -> None:
        for _ in range(self.shard.epoch, EPOCHS):
            for (x,) in self.shard:
                self.model.zero_grad()
                self.replica.backward(self.model(x).square().mean())
                self.replica.step()
                self.samples.append([round(NUM_SAMPLES * float(value)) for value in x])
                self.states.append(self.replica.state_dict())

    def weights(self) -> str:
        return b"".join(p.detach().numpy().tobytes() for p in self.model.parameters()).hex()


def resumes(process_group: ProcessGroup, strategy: str) -> Any:
    """The samples and final weights of a whole run, and of runs that go on after each step."""
    runs = [Run(process_group, strategy)]
    runs[0].train()
    for state in runs[0].states:
        runs[0].replica.close()
        resumed = Run(process_group, strategy)
        resumed.replica.load_state_dict(state)
        resumed.train()
        resumed.replica.close()
        runs.append(resumed)
    return [{"samples": run.samples, "weights": run.weights()} for run in runs]


def goes_back(process_group: ProcessGroup) -> Any:
    """A run, and in the same replica again from its second step on."""
    run = Run(process_group, "local-sgd")
    run.train()
    first = run.weights()
    run.replica.load_state_dict(run.states[1])
    run.train()
    return {"first": first, "again": run.weights()}


SCENARIOS: dict[str, Scenario] = {strategy: partial(resumes, strategy=strategy) for strategy in SETTINGS}
SCENARIOS["goes back"] = goes_back

if __name__ == "__main__":
    serve_rank(SCENARIOS)
