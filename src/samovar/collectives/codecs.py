"""Lossy forms of float32 values for a wire; the formats and what becomes of odd values: native/codec_kernels.hpp."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from samovar import _native

CODECS = ("bf16", "int8", "top-k", "1-bit")

Floats = npt.NDArray[np.float32]
Message = npt.NDArray[np.uint8]


class Codec:
    """One of CODECS by name.

    Bytes of N elements: bf16 2N; int8 N and 4 for every 1,024; top-k 8 for every 100; 1-bit N / 8 and 8 for every
    1,024. Sources: Seide et al. 2014 (1-bit with its residual); Aji and Heafield 2017 (top-k); Dettmers 2016 (int8).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._native = _native.Codec(name)

    def message_bytes(self, num_elements: int) -> int:
        """The size of a message, a multiple of 4; never more than those of its parts together."""
        return self._native.message_bytes(num_elements)

    def encode(self, source: Floats, residual: Floats, message: Message) -> None:
        """v = source + residual; message = that of v; residual = v - what the message becomes."""
        self._native.encode(source, residual, message)

    def decode(self, messages: Sequence[Message], values: Floats) -> None:
        """values = (first + second) + ..., each as its message becomes."""
        self._native.decode(messages, values, False)

    def add(self, messages: Sequence[Message], values: Floats) -> None:
        """values = ((values + first) + second) + ..."""
        self._native.decode(messages, values, True)
