"""How much memory a process took, and that freed memory stays with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from samovar.core.host import peak_memory_bytes

# Ten rounds of blocks, the first of which make the process as large as it gets.
PROGRAM = """
import resource, sys
from samovar.core.host import keep_freed_memory
sizes = [int(size) for size in sys.argv[2:]]
if sys.argv[1] != "leave":
    assert keep_freed_memory(large_too=sys.argv[1] == "all")
faults = []
for _ in range(10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(size << 20) for size in sizes]
    for block in blocks:
        block[::4096] = bytes(len(block[::4096]))
    del blocks
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(max(faults[3:]))
"""


def faults_a_round(mode: str, *sizes: int) -> int:
    command = [sys.executable, "-c", PROGRAM, mode, *map(str, sizes)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_no_page_comes_from_the_kernel_twice() -> None:
    assert faults_a_round("leave", 1, 20, 50) > 10_000  # 71 MiB, each page anew
    assert faults_a_round("all", 1, 20, 50) < 1_000


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_large_blocks_go_back_where_they_are_not_named() -> None:
    assert faults_a_round("small", 1, 10, 20) < 1_000
    assert 12_000 < faults_a_round("small", 1, 20, 50) < 14_000  # 50 MiB


# More than this process has, whose own peak must not pass for that of a child.
PEAK_PROGRAM = """
from samovar.core.host import peak_memory_bytes
before = peak_memory_bytes()
block = b"x" * (200 << 20)
del block
print(before, peak_memory_bytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_is_that_of_the_process_itself() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK_PROGRAM], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before + (190 << 20) < after < before + (260 << 20)


def test_where_the_system_does_not_tell_there_is_no_peak(tmp_path: Path) -> None:
    assert peak_memory_bytes(tmp_path / "status") == 0
