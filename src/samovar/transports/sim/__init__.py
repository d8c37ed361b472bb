"""Any number of ranks in one process under a virtual clock: production code on simulated windows.

`world.SimWorld` runs a program on every rank; `window` and `transport` are what the program gets; `network` times
messages by a `samovar.core.machine.MachineModel`; `scheduler` switches between ranks; `races` finds accesses that
nothing orders.
"""
