"""Rank program: the setting `factors` of hybrid-easgd, whose groups sum gradients as `sync` does."""

from typing import Any

import torch.nn.functional as F

from samovar.api.process_group import ProcessGroup
from tests.multiproc.replicate_factors_rank import STEPS, num_factored
from tests.multiproc.replicate_nets import batches, distance, perceptron, replicated, sgd, train_alone, values
from tests.multiproc.replicate_products_rank import noted
from tests.multiproc.replicate_ranks import serve_rank


def trained(process_group: ProcessGroup, factors: str | None) -> Any:
    """One group of all ranks, which meets its center after its last step alone."""
    model = perceptron()
    settings = {"name": "hybrid-easgd", "group_size": process_group.group.world_size, "sync_period_steps": STEPS + 1}
    replica = replicated(process_group, model, optimizer := sgd(model), factors=factors, **settings)
    for x, y in batches(replica.rank, STEPS):
        optimizer.zero_grad()
        replica.backward(F.cross_entropy(model(x), y))
        replica.step()
    replica.load_state_dict(replica.state_dict())
    reference = train_alone(perceptron(), replica.world_size, STEPS)
    result = {"distance": distance(model, reference), "values": values(model), "factored": num_factored(replica)}
    replica.finish()
    return result


def left_out(process_group: ProcessGroup) -> Any:
    return trained(process_group, None)


def none(process_group: ProcessGroup) -> Any:
    return trained(process_group, "none")


def always(process_group: ProcessGroup) -> Any:
    return trained(process_group, "always")


SCENARIOS = {scenario.__name__: noted(scenario) for scenario in (left_out, none, always)}

if __name__ == "__main__":
    serve_rank(SCENARIOS)
