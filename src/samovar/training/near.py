"""Whether ranks in step keep and exchange the model on their devices, and how these are connected."""

import contextlib
from collections.abc import Iterator
from functools import partial

import torch

from samovar.collectives.engine import Collectives
from samovar.config import RunConfig
from samovar.core.clock import Deadline
from samovar.core.device import CUDA, NEAR_CPU, STAGED_CPU
from samovar.core.errors import RankFailed
from samovar.model.device import count_devices
from samovar.report.wording import counted
from samovar.strategies.base import kind_of
from samovar.strategies.traits import AUTO
from samovar.training.context import RankContext
from samovar.training.evaluation import gather
from samovar.transports.rendezvous import first_line, listen_at, within
from samovar.transports.torch_dist import ConnectNear, JobStore, NearCollectives, open_store

_LOOPBACK = "127.0.0.1"


def why_staged(config: RunConfig, device: torch.device | None) -> str:
    """Why a model on `device` is copied through the host's memory in each step; "" if it stays on the device."""
    sharing = config.strategy
    if device is None or config.device == STAGED_CPU:
        return f"--device {config.device} says so"
    if config.transport != AUTO:
        return f"--transport {config.transport} has its windows there"
    if sharing.needs_center and sharing.exchanges_weights and not sharing.traits.in_groups:
        return ""
    if not kind_of(sharing.name).computes_near(sharing):
        return f"strategy {sharing.name} with these settings works there"
    if config.workers > 1 and sharing.collective != AUTO:
        return f"--collective {sharing.collective} adds up there"
    return _why_not_by_nccl(config)


def _why_not_by_nccl(config: RunConfig) -> str:
    if config.hosts is not None:
        return "between hosts ranks exchange over encrypted TCP"
    if config.workers == 1 or config.device == NEAR_CPU:
        return ""
    count = 1 if ":" in config.device else count_devices()
    if config.workers > count:
        return f"{config.workers} workers share {counted(count, 'GPU')}, and NCCL takes one on each"
    return "" if torch.distributed.is_nccl_available() else f"PyTorch {torch.__version__} is built without NCCL"


def staged_notices(config: RunConfig, device: torch.device | None) -> tuple[str, ...]:
    """A notice that a GPU's model is copied through the host's memory."""
    if not config.device.startswith(CUDA) or not (why := why_staged(config, device)):
        return ()
    return (f"--device {config.device}: each step copies the model through the host's memory, because {why}",)


@contextlib.contextmanager
def near_of(context: RankContext) -> Iterator[ConnectNear | None]:
    """The function that connects the devices of all ranks, for ranks whose models stay there; None for others.

    All ranks call it together, if at all: at a center none does. The connections are closed at the end.
    """
    device = context.device
    if device is None or why_staged(context.config, device):
        yield None
        return
    with contextlib.ExitStack() as stack:
        yield partial(_connected, context, device, stack)


def _connected(
    context: RankContext, device: torch.device, stack: contextlib.ExitStack, host: Collectives
) -> NearCollectives:
    timeout_s, group = context.config.timeout_s, context.transport.group
    if group.world_size == 1:
        return NearCollectives(None, host, device)
    make = partial(_store(context).near, "near", group.rank, group.world_size, device, timeout_s)
    try:
        near = NearCollectives(within(make, Deadline.after(timeout_s)), host, device)
    except (TimeoutError, RuntimeError) as error:
        raise RankFailed(
            f"rank {group.rank}: the GPUs cannot be connected: {first_line(error) or 'not in time'}; --collective "
            "direct copies through the host's memory"
        ) from error
    stack.callback(near.close)
    return near


def _store(context: RankContext) -> JobStore:
    """A store for the ranks of this host, which rank 0 serves on loopback."""
    rank, deadline = context.transport.group.rank, Deadline.after(context.config.timeout_s)
    listening = listen_at(_LOOPBACK, 0) if rank == 0 else None
    own_port = 0 if listening is None else listening.getsockname()[1]
    port = int(gather(context.transport, [own_port], context.config.timeout_s).max())
    descriptor = None if listening is None else listening.detach()
    who = f"rank {rank}"
    return open_store(_LOOPBACK, port, serves=rank == 0, listen_descriptor=descriptor, who=who, deadline=deadline)
