"""Random numbers that depend on the seed, the layer's name and the sample alone; Dropout.

So a sample has the same draws on any worker, in any batch, and in every repetition.
"""

import hashlib
from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from samovar.core.buffer import sent
from samovar.frontends.caffe.layers.base import KEPT, Layer
from samovar.frontends.caffe.spec import LayerSpec, Shape

Words = npt.NDArray[np.uint32]

_WORDS_PER_BLOCK = 8  # one step of Philox's counter gives four words of 64 bits


class RandomLayer(Layer):
    """A layer that draws in forward; the net sets `sample_numbers` (global counters, int64 (N,)) before each.
    A sample's counter rises over the whole run, so (seed, layer, counter) is unique for every draw of every step."""

    def build(self, spec: LayerSpec, _shapes: Sequence[Shape]) -> None:
        self.seed = self._store.seed
        digest = hashlib.sha256(f"{self.seed} {spec.name} draws".encode()).digest()
        self._key = np.frombuffer(digest[:16], "<u8").copy()
        self.is_random = True
        self.sample_numbers = torch.zeros(1, dtype=torch.int64)
        self.rows = (0, 0)  # of the batch that the net is built for, and of the present one; set with the numbers

    def numbers_for(self, shape: Shape) -> npt.NDArray[np.int64]:
        """The samples' numbers; the first one alone if samples do not divide the first axis evenly."""
        numbers = self.sample_numbers.numpy()
        return numbers[:1] if not shape or shape[0] % len(numbers) else numbers

    def words(self, shape: Shape) -> Words:
        """Random words, uint32 of `shape`, a function of `numbers_for(shape)`. Cost: 1 ns a word (Philox)."""
        numbers = self.numbers_for(shape)
        return sample_words(self._key, numbers, prod(shape) // len(numbers)).reshape(shape)

    def uniforms(self, shape: Shape, like: torch.Tensor) -> torch.Tensor:
        """Uniform on [0, 1) in steps of 2^-24, float32, on the device of `like`."""
        values = (self.words(shape) >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
        return sent(torch.from_numpy(values), like.device)


def sample_words(key: npt.NDArray[np.uint64], numbers: npt.NDArray[np.int64], count: int) -> Words:
    """uint32 (len(numbers), count): row i is a function of (key, numbers[i]) alone. Sample n owns `blocks` steps of
    Philox's counter from n * blocks on, so runs of consecutive samples are drawn at once."""
    blocks = -(-count // _WORDS_PER_BLOCK)
    rows = np.empty((len(numbers), count), np.uint32)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    for run in np.split(np.arange(len(numbers)), breaks):
        if not len(run) or not count:
            continue
        start = int(numbers[run[0]]) * blocks
        counter = np.array([start % 2**64, start >> 64, 0, 0], np.uint64)
        raw = np.random.Philox(key=key, counter=counter).random_raw(len(run) * blocks * 4)
        little = raw.astype("<u8", copy=False).view("<u4").reshape(len(run), -1)
        rows[run] = little[:, :count]
    return rows


class Dropout(RandomLayer):
    """In training each value is kept with probability 1 - ratio and then divided by it, else 0; in test y = x.
    Reference: Srivastava et al., Dropout, 2014."""

    memory_order = KEPT
    takes_half = True
    settings = ("dropout_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        super().build(spec, bottom_shapes)
        ratio = spec.finite("dropout_param", "dropout_ratio")
        if not 0 < ratio < 1:
            raise spec.error(
                f"dropout_ratio: {ratio:g}; it must be between 0 and 1 (for 0 remove the layer)",
                "dropout_param.dropout_ratio",
            )
        self.is_random = spec.is_training
        self.threshold = np.uint32(min(round(ratio * 2**32), 2**32 - 1))
        self.scale = 1 / (1 - ratio)

    def work_as(self, is_training: bool) -> None:
        self.is_random = is_training

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if not self.is_random:
            return (x,)
        kept = self.words(tuple(x.shape)) >= self.threshold
        mask = sent(torch.from_numpy(np.asarray(kept)), x.device).to(x.dtype).mul_(self.scale)
        return (x * mask,)
