"""The sources of Python's standard library, byte by byte: batches of a rank, and a part that is not trained on."""

import sysconfig
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

STDLIB = "stdlib"
NUM_TOKENS, LENGTH = 256, 64
_HELD_OUT_EVERY = 20  # one file in so many
_TEST_WINDOWS, _TEST_BATCH = 256, 16
_LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3"}
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


class Texts:
    """The modules' bytes in the order of their names."""

    def __init__(self) -> None:
        root = Path(sysconfig.get_paths()["stdlib"])
        found = sorted(path for path in root.rglob("*.py") if not _LEFT_OUT & set(path.relative_to(root).parts))
        self._train = _joined([path for number, path in enumerate(found) if number % _HELD_OUT_EVERY])
        self._held_out = _joined(found[::_HELD_OUT_EVERY])

    def batches(self, rank: int, _world_size: int, batch: int, seed: int) -> Batches:
        """Random windows of the text and the byte after each of theirs: (batch, LENGTH) and (batch x LENGTH,)."""
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        while True:
            starts = torch.randint(len(self._train) - LENGTH, (batch,), generator=generator)
            yield _windows(self._train, starts)

    def windows(self) -> torch.Tensor:
        """The text in pieces of LENGTH bytes and the one after them: (pieces, LENGTH + 1), one byte each."""
        return self._train.unfold(0, LENGTH + 1, LENGTH)

    @cached_property
    def _tests(self) -> tuple[torch.Tensor, ...]:
        return torch.linspace(0, len(self._held_out) - LENGTH - 1, _TEST_WINDOWS).long().split(_TEST_BATCH)

    @torch.no_grad()
    def loss(self, net: nn.Module, rank: int, world_size: int) -> list[float]:
        """The sum of losses on this rank's part of what is held out, and how many they are."""
        device = next(net.parameters()).device
        tests = [
            [part.to(device) for part in _windows(self._held_out, starts)] for starts in self._tests[rank::world_size]
        ]
        losses = [float(F.cross_entropy(net(text), following, reduction="sum")) for text, following in tests]
        return [sum(losses), sum(len(following) for _, following in tests)]


def _joined(paths: list[Path]) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(b"".join(path.read_bytes() for path in paths), np.uint8).copy())


def _windows(text: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    windows = text[starts[:, None] + torch.arange(LENGTH + 1)].long()
    return windows[:, :-1], windows[:, 1:].flatten()
