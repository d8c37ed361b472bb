"""Ring all-reduce: every rank sends to its right neighbour only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from samovar.collectives.execute import PlanRunner
from samovar.collectives.plan import Notify, Operation, Plan, Put, Reduce, Wait
from samovar.transports.base import Array


def ring_all_reduce(rank: int, world_size: int) -> Plan:
    """Sum of all buffers on every rank, chunk by chunk around a ring.

    Chunk c starts at rank c and is added up at c+1, c+2, ..., c-1, so its sum is
    x_{c-1} + (... + (x_{c+1} + x_c)): one fixed order. Its owner c-1 then sends it once around.

    Cost: 2(P-1) steps; 2(P-1)/P * N elements sent per rank.
    Reuse: a rank's last sum reaches everybody only after all its stagings are read, so nobody can put
    into them again earlier; buffers are written only after the peer's own share was sent.

    Reference: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009, section 3.
    """
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    last_step = world_size - 1
    operations: list[Operation] = []
    for step in range(last_step):
        operations.append(Put(right, (rank - step) % world_size, staging=step, slot=step))
        operations.append(Wait(left, slot=step))
        operations.append(Reduce((rank - step - 1) % world_size, (step,)))
    for step in range(last_step):
        slot = last_step + step
        operations.append(Put(right, (rank + 1 - step) % world_size, staging=None, slot=slot))
        operations.append(Wait(left, slot))
    return Plan("ring", tuple(operations), world_size, last_step, 2 * last_step)


def ring_reduce_scatter(rank: int, world_size: int) -> Plan:
    """Sum of chunk r of all buffers in chunk r of rank r; its other chunks are left with partial sums.

    Chunk c starts at rank c+1 and is added up at c+2, c+3, ..., c, so its sum is
    x_c + (x_{c-1} + (... + (x_{c+2} + x_{c+1}))): one fixed order.

    Cost: P steps, the first without data; (P-1)/P * N elements sent per rank.
    Reuse: what a rank receives does not say that its right neighbour has read its stagings, so each rank first
    tells its left one that they are free.

    Reference: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009, section 3.
    """
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    operations = list(_readiness(left, right, world_size))
    for step in range(world_size - 1):
        operations.append(Put(right, (rank - 1 - step) % world_size, staging=step, slot=step))
        operations.append(Wait(left, slot=step))
        operations.append(Reduce((rank - 2 - step) % world_size, (step,)))
    return Plan("reduce-scatter", tuple(operations), world_size, world_size - 1, _num_slots(world_size))


def ring_all_gather(rank: int, world_size: int) -> Plan:
    """Chunk r of rank r in chunk r of every rank; nothing is added.

    Cost: P steps, the first without data; (P-1)/P * N elements sent per rank.
    Reuse: each rank first tells its left neighbour that its buffer may be overwritten.

    Reference: as for the reduce-scatter.
    """
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    operations = list(_readiness(left, right, world_size))
    for step in range(world_size - 1):
        operations.append(Put(right, (rank - step) % world_size, staging=None, slot=step))
        operations.append(Wait(left, slot=step))
    return Plan("all-gather", tuple(operations), world_size, 0, _num_slots(world_size))


def _readiness(left: int, right: int, world_size: int) -> Iterator[Operation]:
    """On the last slot: tell the left neighbour, wait for the right one."""
    if world_size > 1:
        yield Notify(left, slot=world_size - 1)
        yield Wait(right, slot=world_size - 1)


def _num_slots(world_size: int) -> int:
    return world_size if world_size > 1 else 0


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


def dissemination_barrier(rank: int, world_size: int) -> Plan:
    """No rank leaves before every rank has come: in round k tell the rank 2^k ahead, wait for the one behind.

    Cost: ceil(log2 P) steps, no data.

    Reference: Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, 1988.
    """
    num_rounds = (world_size - 1).bit_length()
    operations: list[Operation] = []
    for slot in range(num_rounds):
        distance = 1 << slot
        operations.append(Notify((rank + distance) % world_size, slot))
        operations.append(Wait((rank - distance) % world_size, slot))
    return Plan("barrier", tuple(operations), 1, 0, num_rounds)
