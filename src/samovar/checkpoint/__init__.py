"""Atomic, hashed, complete snapshots of whatever is `Stateful`."""
