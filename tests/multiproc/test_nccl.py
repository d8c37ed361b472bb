"""NCCL where it cannot be had: every rank says why, at once."""

import sys

from tests.multiproc.ports import reserved_port
from tests.multiproc.test_join import PROGRAM, failed, started, variables_of


def test_nccl_without_a_gpu_is_refused_by_every_rank() -> None:
    program = (sys.executable, PROGRAM, "sums")
    with reserved_port() as port:
        variables = [variables_of(rank, 2, port) | {"SAMOVAR_TRANSPORT": "nccl"} for rank in range(2)]
        with started([(program, own, ()) for own in variables]) as ranks:
            for rank, process in enumerate(ranks):
                error = failed(process, 2)
                assert error.startswith(f"rank {rank} of 2 on ")
                assert "transport 'nccl' between hosts is impossible: " in error
                assert error.endswith("(rank 0): its model is on the CPU; give auto or gloo")
