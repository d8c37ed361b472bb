"""Memory that was freed stays with the process."""

import subprocess
import sys

import pytest

# Ten rounds of blocks, the first of which make the process as large as it gets.
PROGRAM = """
import resource, sys
from samovar.core.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
faults = []
for _ in range(10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(size << 20) for size in (1, 20, 50)]
    for block in blocks:
        block[::4096] = bytes(len(block[::4096]))
    del blocks
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(max(faults[3:]))
"""


def faults_a_round(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True, timeout=50)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_no_page_comes_from_the_kernel_twice() -> None:
    assert faults_a_round("leave") > 10_000  # 71 MB, each page anew
    assert faults_a_round("keep") < 1_000
