"""The box: a parameter server, which holds parameters that workers change together, each at its own speed.

A box has buffers by name. Each is a center, the parameters themselves, and a board, which shows its members. Members of
the same host map both and work on them directly (`mapped`); members elsewhere ask over the network (`remote`), and are
answered by the server (`serving`, `seats`). `joining` gives a seat at either; `shards` makes one center of several.
"""

from importlib import import_module

TYPE_CHECKING = False

if TYPE_CHECKING:
    from samovar.box.client import Box, BoxBuffer, connect

__all__ = ["Box", "BoxBuffer", "connect"]


if not TYPE_CHECKING:  # for which a name with a mistake would be one more object

    def __getattr__(name: str) -> object:
        """Import the public names when they are asked for, because the rest of the room is imported without them."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("samovar.box.client"), name)
