"""A described cluster that processes of one host are to behave like, as `samovar run --emulate` hands it to them."""

from dataclasses import dataclass

from samovar.core.machine import MachineModel


@dataclass(frozen=True, slots=True)
class DescribedStep:
    """Seconds of a worker's computation in a step, on a worker whose factor is 1.

    `sizes` are the parameters of layers in the order in which backward finishes them, and `backward_s` the seconds of
    each. `after_s` follows the last gradient. Each step takes up to `jitter` longer, drawn evenly.
    """

    forward_s: float
    sizes: tuple[int, ...]
    backward_s: tuple[float, ...]
    after_s: float
    update_s: float
    jitter: float = 0.0

    @property
    def num_parameters(self) -> int:
        return sum(self.sizes)

    @property
    def seconds(self) -> float:
        return self.forward_s + sum(self.backward_s) + self.after_s + self.update_s


@dataclass(frozen=True, slots=True)
class Emulation:
    """The machine, the hosts of a center's servers with their memory's rate, and a step; None: as fast as it comes.

    A sleep here ends `wake_up_s` late, so it is begun with as much less.
    """

    machine: MachineModel
    server_hosts: tuple[int, ...]
    server_bytes_per_s: float
    wake_up_s: float
    step: DescribedStep | None = None
