"""What of a model's gradients may travel as factors among these ranks."""

from collections.abc import Callable, Mapping

from torch import nn

from samovar.collectives.engine import Collectives, PlannedCollectives
from samovar.collectives.hierarchical import HierarchicalCollectives
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.frontends.torch.factors import matrices, own_arithmetic
from samovar.strategies.config import StrategyConfig
from samovar.strategies.factors import LEAST_BYTES, Factoring, Links
from samovar.strategies.traits import ALWAYS, AUTO, NONE

# Where nothing travels. Of smaller ones the copy that is saved costs less than looking through the loss's graph.
LEAST_IN_PLACE_BYTES = 12 << 20


def matrix_names(parameters: Mapping[str, nn.Parameter], config: StrategyConfig) -> tuple[str, ...]:
    """The parameters whose gradients are looked for among the products of a loss's graph: those of 12 MiB and more,
    where factors may travel of 1 MiB, and all where they always do.

    Raises InputError where they always should, and there is none.
    """
    if config.factors == NONE:
        return ()
    least_bytes = {None: LEAST_IN_PLACE_BYTES, AUTO: LEAST_BYTES, ALWAYS: 0}[config.factors]
    names = matrices(parameters, least_bytes)
    if config.factors == ALWAYS and not names:
        raise InputError(
            f"replicate: factors='always': the model has no matrix of float32 on the CPU; choose 'auto' or '{NONE}'"
        )
    return names


def factoring_of(
    collectives: Collectives, config: StrategyConfig, deadline: Callable[[], Deadline], tell: Callable[[str], None]
) -> Factoring:
    return Factoring(collectives, config.factors or NONE, _links(collectives), own_arithmetic(), deadline, tell)


def _links(collectives: Collectives) -> Links:
    world_size = collectives.group.world_size
    if isinstance(collectives, HierarchicalCollectives):
        num_ranks = max(len(host.ranks) for host in collectives.hosts)
        return Links(len(collectives.hosts), (len(collectives.hosts) - 1) * num_ranks)
    assert isinstance(collectives, PlannedCollectives), collectives
    return Links(-(-world_size // collectives.host_size), world_size - 1)
