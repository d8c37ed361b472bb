"""Rank 0's tensors on all ranks."""

from collections.abc import Callable, Iterator, Sequence

import torch

from samovar.collectives.engine import Collectives
from samovar.core.clock import Deadline

_STAGING_BYTES = 1 << 22


class Broadcast:
    """Sends tensors of any type from rank 0 through a staging area of 4 MiB."""

    def __init__(self, collectives: Collectives) -> None:
        self._is_alone = collectives.group.world_size == 1
        if not self._is_alone:
            region = collectives.region("broadcast", _STAGING_BYTES)
            self._runner = collectives.broadcast("broadcast", region)
            self._staging = torch.from_numpy(region.array)

    @torch.no_grad()
    def run(self, tensors: Sequence[torch.Tensor], deadline: Callable[[], Deadline]) -> None:
        """Overwrite the tensors with those of rank 0, bit by bit; all ranks give equal shapes and types.

        Cost: the tensors' bytes once through the staging area, a broadcast for each filling.
        """
        if self._is_alone:
            return
        flats = [_bytes(tensor) for tensor in tensors]
        for pieces in _fillings(flats, _STAGING_BYTES):
            torch.cat(pieces, out=self._staging[: sum(len(piece) for piece in pieces)])
            self._runner.run(deadline())
            start = 0
            for piece in pieces:
                piece.copy_(self._staging[start : start + len(piece)])
                start += len(piece)
        for tensor, flat in zip(tensors, flats, strict=True):
            if flat.data_ptr() != tensor.data_ptr():
                tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes in logical order: its own memory where it is contiguous, and the CPU's."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _fillings(flats: Sequence[torch.Tensor], size: int) -> Iterator[list[torch.Tensor]]:
    """The bytes of all tensors in pieces, gathered into lists of at most `size` bytes."""
    pieces: list[torch.Tensor] = []
    room = size
    for flat in flats:
        start = 0
        while start < len(flat):
            piece = flat[start : start + room]
            pieces.append(piece)
            start, room = start + len(piece), room - len(piece)
            if not room:
                yield pieces
                pieces, room = [], size
    if pieces:
        yield pieces
