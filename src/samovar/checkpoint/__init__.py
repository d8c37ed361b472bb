"""Atomic, hashed snapshots of anything that is `Stateful`, and checkpoints of several processes in one file."""
