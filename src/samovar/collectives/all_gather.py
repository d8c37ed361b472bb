"""What every rank has, on one rank or on all of them, in the order of ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

from samovar.collectives.execute import PlanRunner
from samovar.collectives.plan import Notify, Operation, Plan, Put, Wait
from samovar.transports.base import Array


@dataclass(frozen=True, slots=True)
class AllGather:
    """A run of `runner` brings what this rank wrote to `own` to all ranks, where rank r's is `parts[r]`.

    All arrays are float32 of one size. `own` may be written again after a run, which is when `parts` may change too.
    """

    own: Array
    parts: Sequence[Array]
    runner: PlanRunner


def direct_gather(rank: int, world_size: int) -> Plan:
    """Chunk r begins on rank r and ends on rank 0, which tells the others first that they may put theirs there.

    Cost: 2 steps, the first without data; each rank but 0 sends N/P elements.
    """
    others = range(1, world_size)
    if rank > 0:
        operations: list[Operation] = [Wait(0, 0), Put(0, rank, staging=None, slot=rank)]
    else:
        operations = [*(Notify(peer, 0) for peer in others), *(Wait(peer, peer) for peer in others)]
    return Plan("gather", tuple(operations), world_size, 0, world_size)
