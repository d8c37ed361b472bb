"""Atomic, hashed, complete snapshots of whatever is `Stateful`."""

from samovar.checkpoint.reading import Snapshot
from samovar.checkpoint.store import SnapshotStore

__all__ = ["Snapshot", "SnapshotStore"]
