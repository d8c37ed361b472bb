"""Ring all-reduce: every rank sends to its right neighbour only."""

from samovar.collectives.plan import Operation, Plan, Put, Reduce, Wait


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
