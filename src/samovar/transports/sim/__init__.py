"""Any number of ranks in one process under a virtual clock: production code on simulated windows.

`world.simulate` runs a program on every rank, which gets a `world.SimTransport` and its windows. `network` times
messages by a `samovar.core.machine.MachineModel`. `scheduler` switches between ranks. `races` finds unordered accesses.
"""
