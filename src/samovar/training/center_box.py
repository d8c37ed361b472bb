"""What a rank has of the box that holds its center: the run's own, or one that several runs train at."""

from collections.abc import Callable, Sequence
from typing import Protocol

from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.layout import Layout
from samovar.membership.progress_table import ProgressTable
from samovar.strategies.center_steps import CenterSeat
from samovar.strategies.config import StrategyConfig
from samovar.training.evaluated import CenterWeights


class CenterBox(Protocol):
    """Board and center as this rank sees them."""

    @property
    def goes_on(self) -> bool:
        """Whether this rank starts from the center: it has been here before, or joins others."""
        ...

    @property
    def first_step(self) -> int:
        """The step from which this launch trains."""
        ...

    @property
    def order_index(self) -> int | None:
        """The number by which this rank reads all data in an order of its own; None where ranks share one order."""
        ...

    @property
    def transports(self) -> frozenset[str]:
        """How this rank reaches the center: "shm" where it maps it, "tcp" over the network; several boxes, by both."""
        ...

    @property
    def crew(self) -> ProgressTable:
        """There once `evaluated` was called."""
        ...

    def seat(self, strategy: StrategyConfig, layout: Layout) -> CenterSeat:
        """This rank's access to the center; of all but one after others have filled it."""
        ...

    def is_filled(self) -> None:
        """This rank says, if it is the one that fills the center: it holds what the run starts from."""
        ...

    def lock_wait_s(self) -> float:
        """What this rank lost to others at the center so far."""
        ...

    def evaluated(
        self, weights: FlatBuffer, statistics: Sequence[str], deadline: Callable[[], Deadline]
    ) -> CenterWeights:
        """The center for tests and snapshots while others go on; gives the rank its crew."""
        ...
