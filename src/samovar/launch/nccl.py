"""How PyTorch's NCCL process groups take an error."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "TORCH_NCCL_BLOCKING_WAIT"


@contextmanager
def raised_nccl_errors() -> Iterator[None]:
    """Groups made inside raise an operation's error where it is waited for, instead of ending the process.

    A group asks for this variable when it is made, and has no option that says the same; groups that a script makes
    before or after stay as they are. Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp; see ADR 19.
    """
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
