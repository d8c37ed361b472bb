"""Foresight: how a net would train on a described cluster, from runs of the real strategies on simulated machines.

`cluster` reads machines, `profile` a net's layers and their times. `runs` lets N workers train in virtual time, and
`prediction` compares strategies and numbers of workers. `plans` does it for collectives, `volumes` for layers.
"""
