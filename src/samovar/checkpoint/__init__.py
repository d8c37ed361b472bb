"""Atomic, hashed, complete snapshots of anything that is `Stateful`."""
