"""The two halves of a ring all-reduce as plans of their own. Rank r owns chunk r."""

from collections.abc import Iterator

from samovar.collectives.plan import Notify, Operation, Plan, Put, Reduce, Wait


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
