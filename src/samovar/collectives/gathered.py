"""An encoded all-reduce of a library's all-gather: every rank sends one message, and adds up those of all."""

import numpy as np

from samovar.collectives.codecs import Codec, Floats, Message
from samovar.core.clock import Deadline
from samovar.transports.base import NativeCollectives, Pending


class GatheredMessages:
    """buffer = what rank 0's message becomes + what rank 1's becomes + ...: the same bits on every rank.

    A rank's message is encoded once, with its own residual; sums are never encoded, so that nothing is lost but what is
    in the residuals. Messages are encoded when an exchange begins and decoded by whoever waits for it.

    Cost: each of H ranks sends (H - 1) messages, where an all-reduce of values sends 2 (H - 1) / H of them. So
    bf16 sends less for up to 3 ranks, int8 up to 7, 1-bit up to 60, top-k up to 99.
    Memory: H + 1 messages, and N floats for the residual.
    """

    def __init__(self, what: str, buffer: Floats, between: NativeCollectives, codec: Codec) -> None:
        self.residual: Floats = np.zeros(len(buffer), np.float32)
        self._what = what
        self._buffer = buffer
        self._between = between
        self._codec = codec
        self._own: Message = np.zeros(codec.message_bytes(len(buffer)), np.uint8)
        self._all: Message = np.zeros((between.group.world_size, len(self._own)), np.uint8)

    def begin(self) -> Pending:
        """Send this rank's message; the wait for it leaves the sum in the buffer."""
        self._codec.encode(self._buffer, self.residual, self._own)
        return _Decoding(self._between.all_gather(self._what, self._own, self._all), self)

    def decode(self) -> None:
        self._codec.decode(list(self._all), self._buffer)

    def give_back(self) -> None:
        """See `samovar.collectives.encoded.EncodedRunner`."""
        self._buffer += self.residual
        self.residual[:] = 0.0


class NoMessages:
    """Of a rank that sends none to other hosts."""

    def __init__(self) -> None:
        self.residual: Floats = np.zeros(0, np.float32)

    def give_back(self) -> None:
        """Nothing was left out."""


class _Decoding:
    """A `Pending`: the gathering, and then the sum."""

    def __init__(self, gathering: Pending, messages: GatheredMessages) -> None:
        self._gathering = gathering
        self._messages = messages

    def wait(self, deadline: Deadline) -> None:
        self._gathering.wait(deadline)
        self._messages.decode()
