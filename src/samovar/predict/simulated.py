"""Simulations for predictions: only times and bytes count, unless something is learned."""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from samovar.core.machine import MachineModel
from samovar.transports.sim.world import SimConfig, SimRun, SimTransport, simulate

_Result = TypeVar("_Result")
_MANY_OBJECTS = 50_000


def simulated(
    program: Callable[[SimTransport], _Result],
    num_workers: int,
    machine: MachineModel,
    magnification: float,
    server_hosts: tuple[int, ...] = (),
    learning_seed: int | None = None,
) -> SimRun[_Result]:
    """Run the program on each worker; see `SimConfig`. Nothing is checked or logged.

    Windows hold no bytes, except if something is learned with a seed.
    """
    config = SimConfig(
        seed=learning_seed or 0,
        machine=machine,
        check=False,
        counted_above_bytes=0 if learning_seed is None else math.inf,
        magnification=magnification,
        server_hosts=server_hosts,
        is_logged=False,
    )
    with _collected_once():
        return simulate(program, num_workers, config)


@contextmanager
def _collected_once() -> Iterator[None]:
    """Collect only what the block made, at its end, and only if that is much: it takes a fourth of the time then.

    The cycle collector would look through everything again and again. A simulation that ends well leaves no cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        if gc.get_count()[0] > _MANY_OBJECTS:
            gc.collect()
        gc.unfreeze()
        if was_enabled:
            gc.enable()
