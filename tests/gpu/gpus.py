"""What tests on a real GPU share. Without one they are skipped.

NCCL refuses two ranks on one GPU of a host. With NCCL_HOSTID each rank seems to be on a host of its own, so one GPU is
enough to run it among several ranks: through sockets, as between hosts.
"""

from pathlib import Path

import pytest
import torch

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
# Python loads it in each process: the launcher's and the first rank's, which forks the others.
_APART = """
import os
from samovar.training import near

def apart():
    os.environ["NCCL_HOSTID"] = str(os.getpid())

apart()
os.register_at_fork(after_in_child=apart)
near._why_not_by_nccl = lambda config: ""
"""


def apart(folder: Path) -> tuple[str, ...]:
    """The beginning of a command whose ranks use NCCL, though they share a GPU."""
    place = folder / "apart"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(_APART)
    return "env", f"PYTHONPATH={place}"


ALONE = ("env",)  # the interpreter is started anew: a forked one cannot use the GPU
