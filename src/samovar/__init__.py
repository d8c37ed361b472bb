"""Samovar: train deep networks on several workers and choose how they share what they learn."""

from importlib import import_module

TYPE_CHECKING = False  # typing's own would load typing before the program can take a signal

if TYPE_CHECKING:
    from types import ModuleType

    from samovar import box, caffe
    from samovar.api.distributed_state import DistributedState
    from samovar.api.replica import Replica
    from samovar.api.replicate import replicate
    from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, RankFailed, ReplicasDiffer, SamovarError
    from samovar.launcher.train import train
    from samovar.report.result import RunResult
    from samovar.report.sinks import Sink
    from samovar.report.steps import Figures
    from samovar.strategies.base import strategy
    from samovar.strategies.traits import Setting

    __version__: str

__all__ = [
    "DeadlineExceeded",
    "DistributedState",
    "Figures",
    "InputError",
    "NotFinite",
    "RankFailed",
    "Replica",
    "ReplicasDiffer",
    "RunResult",
    "SamovarError",
    "Setting",
    "Sink",
    "__version__",
    "box",
    "caffe",
    "replicate",
    "strategy",
    "train",
]

# Imported when it is first asked for: commands load no more than they need, and the launcher no torch.
_LAZY = {
    "DeadlineExceeded": "samovar.core.errors",
    "DistributedState": "samovar.api.distributed_state",
    "Figures": "samovar.report.steps",
    "InputError": "samovar.core.errors",
    "NotFinite": "samovar.core.errors",
    "RankFailed": "samovar.core.errors",
    "Replica": "samovar.api.replica",
    "ReplicasDiffer": "samovar.core.errors",
    "RunResult": "samovar.report.result",
    "SamovarError": "samovar.core.errors",
    "Setting": "samovar.strategies.traits",
    "Sink": "samovar.report.sinks",
    "replicate": "samovar.api.replicate",
    "strategy": "samovar.strategies.base",
    "train": "samovar.launcher.train",
}


if not TYPE_CHECKING:  # for which a name with a mistake would be one more object

    def __getattr__(name: str) -> object:
        if name in ("box", "caffe"):
            return _imported(f"samovar.{name}")
        if name == "__version__":
            return import_module("importlib.metadata").version("samovar")
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_imported(_LAZY[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


def _imported(module: str) -> "ModuleType":
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if missing := import_module("samovar.core.modules").explained(error):
            raise missing from error
        raise
