"""The program of a rank process: `python -m samovar.training.rank`, started by the launcher."""

import gc
import importlib
import signal
import sys
from types import ModuleType

from samovar.core.host import keep_freed_memory
from samovar.launch.limits import allocator_is_chosen
from samovar.launch.rank_arguments import SNAPSHOT_SIGNAL, STOP_SIGNALS, RankArguments, end_with_parent


def main(arguments: list[str]) -> int:
    """Bind this process's life to the launcher's, then do this rank's part of the job; the exit code."""
    given = RankArguments.parse(arguments)
    end_with_parent(given.parent)
    # These signals wait until the rank can act on them.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, SNAPSHOT_SIGNAL))
    if not allocator_is_chosen():
        keep_freed_memory(large_too=True)
    # Only now: it imports torch, which takes seconds, and the launcher may be killed meanwhile.
    code: int = _imported("samovar.training.rank_work").work(given)
    return code


def _imported(name: str) -> ModuleType:
    """Import a module, and exempt it from garbage collection: that saves a quarter of the time, now and later."""
    gc.disable()
    module = importlib.import_module(name)
    gc.freeze()
    gc.enable()
    return module


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
