"""Dissemination barrier."""

from samovar.collectives.plan import Notify, Operation, Plan, Wait


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
