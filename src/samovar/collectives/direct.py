"""Direct all-reduce: every rank adds up one chunk of all ranks where it lies, and writes the sum to all."""

from collections.abc import Sequence

from samovar.collectives.plan import Combine, Notify, Operation, Plan, Wait


def direct_all_reduce(rank: int, world_size: int) -> Plan:
    """Sum of all buffers on every rank, for memory that all ranks map.

    Rank r owns chunk r. When every rank has said that its buffer is complete, it reads chunk r of ranks 0, 1,
    ..., P-1, adds them in this order, x_0 + x_1 + ..., and writes the sum into all P buffers; then it says so.

    Cost: 2(P-1) messages per rank without data, all at once; (P-1)/P * N elements written into other ranks'
    memory per rank, as many read from it. Each byte is read once and written once: 2N per rank.
    Reuse: a rank touches others' buffers only between their "complete" and its own "done"; nobody leaves before
    all are done.
    """
    others = [(rank + distance) % world_size for distance in range(1, world_size)]
    operations: list[Operation] = [*_everyone(rank, others, 0)]
    if others:
        operations.append(Combine(rank, tuple(range(world_size))))
    operations += _everyone(rank, others, world_size)
    return Plan("direct", tuple(operations), world_size, 0, 2 * world_size)


def _everyone(rank: int, others: Sequence[int], first_slot: int) -> list[Operation]:
    """Tell all, then wait for all."""
    told: list[Operation] = [Notify(peer, first_slot + rank) for peer in others]
    return told + [Wait(peer, first_slot + peer) for peer in others]
