"""Samovar: train deep networks on several workers and choose how they share what they learn."""

from importlib import import_module

TYPE_CHECKING = False  # typing's own would load typing before the program can take a signal

if TYPE_CHECKING:
    from samovar import caffe
    from samovar.api.replica import Replica
    from samovar.api.replicate import replicate
    from samovar.strategies.base import strategy
    from samovar.strategies.traits import Setting

__version__ = "0.1.0"
__all__ = ["Replica", "Setting", "__version__", "caffe", "replicate", "strategy"]

# What needs torch is imported when it is first asked for: the launcher does without.
_LAZY = {
    "Replica": "samovar.api.replica",
    "Setting": "samovar.strategies.traits",
    "replicate": "samovar.api.replicate",
    "strategy": "samovar.strategies.base",
}


def __getattr__(name: str) -> object:
    if name == "caffe":
        return import_module("samovar.caffe")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
