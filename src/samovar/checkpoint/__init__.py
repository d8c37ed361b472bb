"""Atomic, hashed snapshots of anything with a `state_dict`, and checkpoints of several processes in one file."""
