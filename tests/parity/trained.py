"""Trained models of a test session: each combination of settings is trained once."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from tests.multiproc.command import metrics_of, result_of, succeed
from tests.multiproc.nets import write_net, write_solver

NUM_STEPS = 50
PARAMETERS = [f"{layer}/{index}" for layer in ("conv1", "conv2", "ip1", "ip2") for index in range(2)]  # file order


@dataclass(frozen=True)
class Trained:
    """A finished run and what it left."""

    out: Path
    result: dict[str, Any]
    weights: dict[str, npt.NDArray[np.float32]]

    @classmethod
    def of(cls, out: Path) -> "Trained":
        newest = out / "snapshots" / (out / "snapshots" / "latest").read_text().strip()
        return cls(out, result_of(out), safetensors.numpy.load_file(newest / "weights.safetensors"))

    @property
    def sha256(self) -> str:
        """Of the saved weights, as the numerics document defines it."""
        content = b"".join(self.weights[name].astype("<f4").tobytes() for name in PARAMETERS)
        return hashlib.sha256(content).hexdigest()

    @property
    def losses(self) -> list[float]:
        return [line["loss"] for line in metrics_of(self.out, "train")]


class Trainer:
    """Trains the smooth narrow net for NUM_STEPS steps; equal settings give the run that was made before."""

    def __init__(self, folder: Path, data: Path) -> None:
        self._folder = folder
        self._data = data
        self._made: dict[tuple[object, ...], Trained] = {}

    def __call__(self, workers: int, batch: int, *flags: str, iter_size: int = 1, turn: int = 1) -> Trained:
        """`batch` is the net's batch_size; another `turn` trains the same anew."""
        key = (workers, batch, flags, iter_size, turn)
        if key not in self._made:
            net = write_net(self._folder, self._data, batch, smooth=True)
            solver = write_solver(net, NUM_STEPS, iter_size=iter_size)
            self._made[key] = self.train(solver, workers, *flags)
        return self._made[key]

    def train(self, solver: Path, workers: int, *flags: str) -> Trained:
        out = self._folder / f"run{len(list(self._folder.glob('run*')))}"
        shape = ("--workers", workers, "--threads-per-worker", 1)
        succeed("train", "--solver", solver, *shape, "--out", out, *flags, folder=self._data.parent)
        return Trained.of(out)


def relative_difference(one: Trained, other: Trained) -> float:
    """norm(w - w') / norm(w') over all weights, in float64."""
    assert one.weights.keys() == other.weights.keys()
    ours, theirs = (
        np.concatenate([run.weights[name].ravel() for name in PARAMETERS]).astype(float) for run in (one, other)
    )
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
