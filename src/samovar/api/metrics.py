"""A rank's part of a loader's data, and what it has done so far."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from samovar.api.process_group import Announcer, ProcessGroup
from samovar.api.uneven_inputs import Event
from samovar.core.clock import Pace
from samovar.core.group import Group
from samovar.frontends.torch.order import divided_loader


class ReplicaMetrics:
    """Samples that were taken from its shards, how fast, and the loss of its last backward pass."""

    def __init__(self) -> None:
        self.num_samples = 0
        self._loss: torch.Tensor | None = None
        self._pace = Pace()

    def lost(self, loss: torch.Tensor) -> None:
        """Keep it where it is: it is brought from a GPU when it is told."""
        self._loss = loss.detach()

    @property
    def loss(self) -> float:
        """NaN before the first backward pass."""
        return float("nan") if self._loss is None else float(self._loss)

    def samples_per_s(self) -> float:
        """Over the last times that this was asked; 0 where loaders do not tell their batch size."""
        return self._pace.take(self.num_samples)


class Shard:
    """Iterating gives one epoch of this rank's batches; the parts of all ranks are disjoint and together complete.

    From a map-style data set all ranks take the same number of steps wherever possible; `len` tells it. From a stream
    (`IterableDataset`) each takes every P-th item, and how many there are is not known. A rank whose data ends
    first stays in the loop and takes part, without data, in what the others exchange; all leave it together. Where
    workers step at their own speed each leaves by itself; `step_group` are those that step together.

    `epoch` counts the epochs begun, and gives the order of the next. `source` is the loader as it was given.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        group: Group,
        step_group: ProcessGroup,
        announcer: Announcer,
        seed: int,
        epoch: int,
        metrics: ReplicaMetrics,
    ) -> None:
        self.source = loader
        self.seed = seed
        self._loader, self._order = divided_loader(loader, group, seed)
        self._step_group = step_group
        self._announcer = announcer
        self.epoch = epoch
        self._metrics = metrics

    def __iter__(self) -> Iterator[Any]:
        fingerprint = 0.0 if self._order is None else self._order.start(self.epoch)
        self._announcer.agree(Event.SHARD, self.epoch, fingerprint)
        self.epoch += 1
        self._step_group.enter_loop()
        try:
            for batch in self._loader:
                self._metrics.num_samples += self.source.batch_size or 0
                yield batch
            self._step_group.shadow_until_all_end()
        finally:
            self._step_group.leave_loop()

    def __len__(self) -> int:
        return len(self._loader)
