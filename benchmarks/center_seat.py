"""A rank's place at a center in the box of the first rank's host, and the windows that its strategy may want."""

from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch_sides import in_time

from samovar.box.buffers import BufferShape
from samovar.box.joining import BoxSeat, create_buffer, parse_endpoint, take_seat
from samovar.collectives.engine import PlannedCollectives
from samovar.core.group import Group
from samovar.strategies.config import StrategyConfig
from samovar.transports.keys import read_key
from samovar.transports.rendezvous import Rendezvous
from samovar.transports.tcp import TcpTransport, meet
from samovar.transports.tcp_listen import listen
from samovar.transports.tcp_service import TcpConfig


def shape_for(config: StrategyConfig, num_elements: int) -> BufferShape:
    """The center that a strategy wants."""
    return BufferShape(
        num_elements, with_velocity=config.name == "async-msgd", with_locks=not config.name.startswith("hogwild")
    )


def open_seat(job: dict[str, Any], buffer: str, shape: BufferShape, rank: int) -> BoxSeat:
    """The first rank makes the buffer and maps it, the others come over the network with the key."""
    who = f"rank {rank}"
    if rank > 0:
        return take_seat(parse_endpoint(job["box"], Path(job["key"])), buffer, who, in_time())
    place = parse_endpoint(job["box"], None)
    create_buffer(place, buffer, shape, who, in_time())
    return take_seat(place, buffer, who, in_time())


def open_turns(job: dict[str, Any], store: dist.Store, rank: int, world_size: int) -> PlannedCollectives:
    """Windows of all ranks over TCP, with the box's key."""
    key, group, config = read_key(Path(job["key"])), Group(rank, world_size), TcpConfig("benchmark")
    listening = listen(job["address"])
    rendezvous = Rendezvous(store, "rank 0", f"rank {rank}")
    addresses = meet(rendezvous, group, listening.getsockname()[:2], in_time())
    return PlannedCollectives(TcpTransport(group, config, key, listening, addresses), lambda _num_bytes: "ring")
