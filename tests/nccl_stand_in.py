"""A stand-in for NCCL where there is no GPU: gloo's process group, held to what NCCL asks of its callers.

Its "device" is memory that torch allocated; memory of the host's, which belongs to NumPy or to all ranks, is refused as
NCCL refuses what is on no GPU. As with NCCL a failed wait breaks the connections, and an operation of broken
connections ends, says nothing, and leaves anything in its memory.
"""

from typing import Any

import torch

from samovar.transports.torch_dist import Gloo, Nccl

DEVICE = torch.device("cpu")
RUBBISH = -7


class StandIn:
    """`library`'s process group."""

    def __init__(self, library: Gloo) -> None:
        self.group: Any = library._group
        self.is_broken = False
        self.ended_by = ""

    def allreduce(self, tensors: list[torch.Tensor]) -> "StandInWork":
        if self.is_broken:
            raise RuntimeError("NCCL communicator was aborted on rank 0")
        return StandInWork(self, self.group.allreduce(tensors), tensors)

    def broadcast(self, tensor: torch.Tensor, root: int) -> "StandInWork":
        return StandInWork(self, self.group.broadcast(tensor, root), [tensor])

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]) -> "StandInWork":
        return StandInWork(self, self.group.allgather(outputs, inputs), [*outputs[0], *inputs])

    def abort(self) -> None:
        """NCCL calls off what hangs; gloo cannot, so `group` stays until the others have come to it."""
        self.is_broken = True
        self.ended_by = "abort"

    def shutdown(self) -> None:
        self.ended_by = "shutdown"
        self.group = None


class StandInWork:
    """Its wait takes no limit, after which NCCL would break the connections, and must not have to wait."""

    def __init__(self, group: StandIn, work: Any, tensors: list[torch.Tensor]) -> None:
        assert all(tensor.untyped_storage().resizable() for tensor in tensors), "memory of the host's"
        assert all(tensor.is_contiguous() for tensor in tensors)
        self._group = group
        self._work = work
        self._tensors = tensors

    def is_completed(self) -> bool:
        return self._group.is_broken or bool(self._work.is_completed())

    def wait(self) -> bool:
        assert self.is_completed(), "NCCL would wait for other hosts here"
        if self._group.is_broken:
            for tensor in self._tensors:
                tensor.fill_(RUBBISH)
            return True
        try:
            return bool(self._work.wait())
        except RuntimeError:
            self._group.is_broken = True
            raise


def stand_in_nccl(library: Gloo, quiet_s: float) -> Nccl:
    """The result of `JobStore.nccl`, on a stand-in."""
    return Nccl(StandIn(library), DEVICE, quiet_s)
