"""The plans by name: direct, around a ring, by halving and doubling, and over hosts; those on trees are in `tree`."""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import TypeAlias

from samovar.collectives.plan import (
    Combine,
    Notify,
    Operation,
    Plan,
    PlanFunction,
    Put,
    Reduce,
    Span,
    Wait,
    idle,
    renumbered,
    sequence,
)
from samovar.collectives.tree import (
    chosen_arity,
    kary_tree_all_reduce,
    kary_tree_down,
    kary_tree_up,
    server_all_reduce,
    tree_all_reduce,
)


def direct_all_reduce(rank: int, world_size: int) -> Plan:
    """Sum of all buffers on every rank, for memory that all ranks map.

    Rank r owns chunk r. It waits until every rank has said that its buffer is complete. It then reads chunk r of all
    ranks and adds them in the order of ranks, (x_0 + x_1) + x_2 and so on. It writes the sum into all P buffers, and
    says so.

    Cost: 2(P-1) messages per rank without data, all at once; (P-1)/P * N elements written into other ranks'
    memory per rank, as many read from it. Each byte is read once and written once: 2N per rank.
    Reuse: a rank touches others' buffers only between their "complete" and its own "done". No rank leaves before all
    are done.
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
    Reuse: a rank that has its sum does not know whether others still read its buffer. A later message of each of them
    must come before it writes there (`gather_parts` waits for them).
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
    Reuse: a rank's sum reaches the others only after it has read its stagings. It puts into theirs again only after all
    their sums have come. A buffer is written only after its own shares were sent.
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


def _others(rank: int, world_size: int) -> list[int]:
    return [(rank + distance) % world_size for distance in range(1, world_size)]


def _everyone(rank: int, others: Sequence[int], first_slot: int) -> list[Operation]:
    """Tell all, then wait for all."""
    told: list[Operation] = [Notify(peer, first_slot + rank) for peer in others]
    return told + [Wait(peer, first_slot + peer) for peer in others]


def ring_all_reduce(rank: int, world_size: int) -> Plan:
    """Sum of all buffers on every rank, chunk by chunk around a ring.

    Chunk c starts at rank c and is added up at c+1, c+2, ..., c-1, so its sum is
    x_{c-1} + (... + (x_{c+1} + x_c)): one fixed order. Its owner c-1 then sends it once around.

    Cost: 2(P-1) steps; 2(P-1)/P * N elements sent per rank.
    Reuse: a rank's last sum reaches the others only after all its stagings are read, so no rank can put into them
    earlier. Buffers are written only after the peer's own share was sent.

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


def halving_doubling_all_reduce(rank: int, world_size: int) -> Plan:
    """Sum of all buffers on every rank: halves, quarters, ... are exchanged and added, then gathered back.

    Q is the largest power of two in P. Rank Q+r first gives its buffer to rank r and gets the sum at the end.
    On level l = 1, 2, ..., log2 Q, rank r and its partner r xor Q/2^l share the part that they both still add up.
    Each sends the half that it gives away, and adds the received half to the half that it keeps.
    The order is one binary tree for all elements: y0_r = x_r + x_{Q+r}; yl_r = own y(l-1) + partner's, where
    either order gives the same bits.

    Cost: 2 log2 Q steps, and 2 more if Q < P. Rank r < Q sends 2(Q-1)/Q * N elements, and N more if it serves a rank
    Q+r, which sends N. The stagings take (Q-1)/Q * N elements, N more if Q < P.
    Reuse: a partner's sums come back only after it has read its stagings. They fill the half that was given to it. The
    same holds for rank r and rank Q+r.

    Reference: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005
    (all-reduce by reduce-scatter and all-gather).
    """
    levels = world_size.bit_length() - 1
    core = 1 << levels
    folded = world_size > core
    fold_slot = 2 * levels
    operations: list[Operation]
    if rank >= core:
        operations = [Put(rank - core, 0, staging=0, slot=fold_slot), Wait(rank - core, fold_slot)]
    else:
        operations = _halve(rank, levels, core if folded else 0) + _double(rank, levels)
        if rank + core < world_size:
            fold: list[Operation] = [Wait(rank + core, fold_slot), Reduce(0, (0,))]
            operations = [*fold, *operations, Put(rank + core, 0, staging=None, slot=fold_slot)]
    num_stagings, num_slots = core - 1 + core * folded, fold_slot + folded
    spans = _spans(levels)
    return Plan("halving-doubling", tuple(operations), len(spans), num_stagings, num_slots, core, spans)


def _halve(rank: int, levels: int, first_staging: int) -> list[Operation]:
    operations: list[Operation] = []
    for level in range(1, levels + 1):
        partner, kept, given = _level(rank, level, levels)
        # The parts received on the levels above take Q/2, Q/4, ... cells.
        staging = first_staging + (1 << levels) - (1 << (levels - level + 1))
        operations += [Put(partner, given, staging, slot=level - 1), Wait(partner, slot=level - 1)]
        operations.append(Reduce(kept, (staging,)))
    return operations


def _double(rank: int, levels: int) -> list[Operation]:
    operations: list[Operation] = []
    for level in range(levels, 0, -1):
        partner, kept, _ = _level(rank, level, levels)
        slot = levels + level - 1
        operations += [Put(partner, kept, staging=None, slot=slot), Wait(partner, slot)]
    return operations


def _level(rank: int, level: int, levels: int) -> tuple[int, int, int]:
    """The partner, the chunk that is kept and the one that is given."""
    distance = 1 << (levels - level)
    part, first_chunk = rank // distance, (1 << level) - 1
    return rank ^ distance, first_chunk + part, first_chunk + (part ^ 1)


@cache
def _spans(levels: int) -> tuple[Span, ...]:
    """The whole, then its halves, its quarters, ...: part i of level l is chunk 2^l - 1 + i."""
    sizes = [1 << (levels - level) for level in range(levels + 1)]
    return tuple((first, size) for size in sizes for first in range(0, 1 << levels, size))


# The consecutive ranks of each host, or their number if all hosts have as many; then the last one may have fewer.
HostSizes: TypeAlias = int | tuple[int, ...]


def two_level(host_size: HostSizes, between: PlanFunction = ring_all_reduce) -> PlanFunction:
    """The plan function of `two_level_all_reduce` for these settings."""
    return partial(two_level_all_reduce, host_size=host_size, between=between)


def two_level_all_reduce(
    rank: int, world_size: int, host_size: HostSizes, between: PlanFunction = ring_all_reduce
) -> Plan:
    """Sum of all buffers on every rank: to each host's first rank, all-reduce `between` those, and back.

    For a `host_size` of G, host h is ranks h*G to h*G + G-1; the last one may be smaller. A tuple has the size of each
    host, and G is the largest. Inside a host the sum goes up a k-ary tree and comes down the same tree, with k as
    chosen for G ranks. The order is that tree's, then that of `between` over the H hosts' sums.

    Cost: at most (k+1) L more steps than `between` takes among H ranks, L being the levels of the tree of G
    ranks. Inside the hosts 2(P-H)N elements are sent in all; a host's first rank sends those of `between` too.
    Reuse: as in the k-ary tree, with the all-reduce between hosts between up and down. That one follows its own plan,
    as the buffers of first ranks are put into only after their shares were sent.

    Reference: Karonis et al., Exploiting hierarchy in parallel computer networks to optimize collective operation
    performance, 2000.
    """
    hosts = _hosts(world_size, host_size)
    host = next(number for number, members in enumerate(hosts) if rank in members)
    members, leaders = hosts[host], [members.start for members in hosts]
    place = rank - members.start
    arity = chosen_arity(max(map(len, hosts)))
    # A rank that leads no host still needs the counts, which are equal on every rank.
    leading = between(host, len(leaders))
    return sequence(
        "two-level",
        [
            renumbered(kary_tree_up(place, len(members), arity), members),
            renumbered(leading, leaders) if place == 0 else idle(leading),
            renumbered(kary_tree_down(place, len(members), arity), members),
        ],
    )


def _hosts(world_size: int, host_size: HostSizes) -> list[range]:
    """The ranks of each host."""
    if isinstance(host_size, int):
        return [range(first, min(first + host_size, world_size)) for first in range(0, world_size, host_size)]
    assert sum(host_size) == world_size, (host_size, world_size)
    stops = list(accumulate(host_size))
    return [range(stop - size, stop) for stop, size in zip(stops, host_size, strict=True)]


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


# Two-level is not among them: it needs the size of a host.
ALL_REDUCES: dict[str, PlanFunction] = {
    "direct": direct_all_reduce,
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "kary-tree": kary_tree_all_reduce,
    "halving-doubling": halving_doubling_all_reduce,
    "server": server_all_reduce,
}
# The first half of an all-reduce of that name, with its bits.
REDUCE_SCATTERS: dict[str, PlanFunction] = {"direct": direct_reduce_scatter, "ring": ring_reduce_scatter}
ALL_REDUCE_NAMES = (*ALL_REDUCES, "two-level")
IN_PLACE = "direct"  # adds up where the memory is mapped; updates are divided by default then


def all_reduce(name: str, *, host_size: HostSizes) -> PlanFunction:
    """The plan function behind a value of `--collective`; only two-level looks at `host_size`, the ranks of a host."""
    return two_level(host_size) if name == "two-level" else ALL_REDUCES[name]
