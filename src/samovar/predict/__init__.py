"""Foresight: how a net would train on a described cluster, from runs of the real strategies on simulated machines.

`cluster` reads machines, and `work` makes a worker's computation of a net's profile. `runs` lets N workers train in
virtual time, and `prediction` compares strategies and numbers of workers. `plans` does it for collectives.
"""
