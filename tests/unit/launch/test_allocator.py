"""A user's word on malloc stands before `replicate`'s."""

import os
import subprocess
import sys

import pytest

from samovar.launch.limits import allocator_is_chosen


@pytest.mark.parametrize(
    ("variables", "is_chosen"),
    [
        ({}, False),
        ({"LD_PRELOAD": "/usr/lib/libfaketime.so.1", "GLIBC_TUNABLES": "glibc.pthread.rseq=0"}, False),
        ({"MALLOC_TRIM_THRESHOLD_": ""}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "131072"}, True),
        ({"MALLOC_MMAP_MAX_": "65536"}, True),
        ({"GLIBC_TUNABLES": "glibc.pthread.rseq=0:glibc.malloc.mmap_max=65536"}, True),
        ({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, True),
        ({"LD_PRELOAD": "libtcmalloc_minimal.so.4"}, True),
    ],
)
def test_the_environment_decides_where_it_says_anything(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_chosen: bool
) -> None:
    monkeypatch.setattr(os, "environ", variables)
    assert allocator_is_chosen() == is_chosen


PROGRAM = """
import resource, torch, samovar
model = torch.nn.Linear(2, 2)
samovar.replicate(model, torch.optim.SGD(model.parameters(), lr=0.1))
faults = []
for _ in range(16):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(7_000_000)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(max(faults[12:]))
"""


def faults_a_round(**variables: str) -> int:
    environment = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, env=environment)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
@pytest.mark.slow
def test_replicate_keeps_freed_memory_unless_the_user_said_otherwise() -> None:
    assert faults_a_round() < 1_000
    assert faults_a_round(MALLOC_MMAP_THRESHOLD_="1000000") > 5_000
