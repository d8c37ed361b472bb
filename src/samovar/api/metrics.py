"""A rank's part of a loader's data, and its progress."""

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
    """The samples taken from a rank's shards, their rate, and the loss of the last backward pass."""

    def __init__(self) -> None:
        self.num_samples = 0
        self._loss: torch.Tensor | None = None
        self._pace = Pace()

    def lost(self, loss: torch.Tensor) -> None:
        """Keep the loss where it is. It comes from a GPU when somebody asks."""
        self._loss = loss.detach()

    @property
    def loss(self) -> float:
        """The last loss; NaN before the first backward pass."""
        return float("nan") if self._loss is None else float(self._loss)

    def samples_per_s(self) -> float:
        """The rate since the last calls; 0 if loaders do not tell their batch size."""
        return self._pace.take(self.num_samples)


class Shard:
    """This rank's part of a loader: each iteration is one epoch. All parts are disjoint, and complete together.

    If the data set has a length, all ranks take the same number of steps wherever possible, and `len` gives it. Of a
    stream (`IterableDataset`), rank r of P takes every P-th item, beginning with item r. The length is then not known.

    A rank whose data ends first stays in the loop and takes part, without data, in the exchanges of the others. All
    ranks of a step group leave the loop together. At a center each rank leaves by itself.

    `epoch` counts the epochs that have begun, and gives the order of the next one. `source` is the loader as given.
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
