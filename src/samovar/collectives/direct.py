"""Collectives on memory that all ranks map: a rank adds up its chunk of all buffers where they lie."""

from collections.abc import Sequence

from samovar.collectives.plan import Combine, Notify, Operation, Plan, Put, Reduce, Wait


def direct_all_reduce(rank: int, world_size: int) -> Plan:
    """Sum of all buffers on every rank, for memory that all ranks map.

    Rank r owns chunk r. When every rank has said that its buffer is complete, it reads chunk r of ranks 0, 1,
    ..., P-1, adds them in this order, x_0 + x_1 + ..., and writes the sum into all P buffers; then it says so.

    Cost: 2(P-1) messages per rank without data, all at once; (P-1)/P * N elements written into other ranks'
    memory per rank, as many read from it. Each byte is read once and written once: 2N per rank.
    Reuse: a rank touches others' buffers only between their "complete" and its own "done"; nobody leaves before
    all are done.
    """
    others = _others(rank, world_size)
    operations: list[Operation] = [*_everyone(rank, others, 0)]
    if others:
        operations.append(Combine(rank, tuple(range(world_size)), into=tuple(range(world_size))))
    operations += _everyone(rank, others, world_size)
    return Plan("direct", tuple(operations), world_size, 0, 2 * world_size)


def direct_reduce_scatter(rank: int, world_size: int) -> Plan:
    """Sum of chunk r of all buffers in chunk r of rank r; its other chunks stay as they are.

    The order of additions is that of `direct_all_reduce`: the same bits.

    Cost: P-1 messages per rank without data, all at once; nothing is written into other ranks' memory, (P-1)/P * N
    elements of it are read per rank.
    Reuse: a rank that has its sum does not know whether others still read its buffer; something that each of them
    sends afterwards must come before it writes there (`gather_parts` does).
    """
    others = _others(rank, world_size)
    operations: list[Operation] = [*_everyone(rank, others, 0)]
    if others:
        operations.append(Combine(rank, tuple(range(world_size)), into=(rank,)))
    return Plan("direct reduce-scatter", tuple(operations), world_size, 0, world_size)


def gather_parts(rank: int, world_size: int) -> Plan:
    """Chunk r of rank r in chunk r of every rank, where each knows already that it may write to all the others.

    Cost: P-1 puts per rank, all at once: (P-1)/P * N elements sent per rank.
    Reuse: for the second half of an exchange whose first half tells every rank that all others are in it, as
    reduce-scatters do; nobody leaves before all chunks have come.
    """
    others = _others(rank, world_size)
    puts: list[Operation] = [Put(peer, rank, staging=None, slot=rank) for peer in others]
    return Plan("gather parts", (*puts, *(Wait(peer, slot=peer) for peer in others)), world_size, 0, world_size)


def direct_in_messages(rank: int, world_size: int) -> Plan:
    """The same division of work for messages: chunk r of all ranks goes to rank r, its sum from there to all.

    The order of additions is x_r + x_{r+1} + ..., around the ranks.

    Cost: 2(P-1) messages per rank in 2(P-1) steps; 2(P-1)/P * N elements sent per rank.
    Reuse: a rank's sum reaches the others only after it has read its stagings, and it puts into theirs again only
    after all their sums have come; a buffer is written only after its own shares were sent.
    """
    others = _others(rank, world_size)
    # The share of the rank that is d ahead lies in staging d - 1.
    shares: list[Operation] = [
        Put(peer, peer, staging=world_size - 1 - distance, slot=rank) for distance, peer in enumerate(others, start=1)
    ]
    shares += [Wait(peer, slot=peer) for peer in others]
    sums: list[Operation] = [Put(peer, rank, staging=None, slot=world_size + rank) for peer in others]
    sums += [Wait(peer, slot=world_size + peer) for peer in others]
    reduce = [Reduce(rank, tuple(range(world_size - 1)))] if others else []
    num_stagings = world_size - 1
    return Plan("direct", (*shares, *reduce, *sums), world_size, num_stagings, 2 * world_size)


def _others(rank: int, world_size: int) -> list[int]:
    return [(rank + distance) % world_size for distance in range(1, world_size)]


def _everyone(rank: int, others: Sequence[int], first_slot: int) -> list[Operation]:
    """Tell all, then wait for all."""
    told: list[Operation] = [Notify(peer, first_slot + rank) for peer in others]
    return told + [Wait(peer, first_slot + peer) for peer in others]
