"""What the executors remember of types of windows."""

import gc
import weakref

from samovar.collectives.execute import _shows
from samovar.transports.base import MappedWindow
from samovar.transports.sim.window import SimWindow


def test_a_type_that_a_simulation_made_is_forgotten_with_it() -> None:
    """Else 100,000 runs, each with a type of its own, fill the memory."""

    def asked() -> weakref.ref[type]:
        made: type[SimWindow] = type("Made", (SimWindow,), {})
        assert not _shows(SimWindow.__new__(made), MappedWindow)
        return weakref.ref(made)

    left = asked()
    gc.collect()
    assert left() is None
