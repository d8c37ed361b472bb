"""What one machine bears, and folders that go away."""

from pathlib import Path

import pytest

from samovar.core.errors import InputError
from samovar.core.host import available_bytes
from samovar.launch import limits
from samovar.launch.limits import MOST_THREADS_PER_CORE, RANK_BYTES, processes_left, require_room
from samovar.launch.numa import num_available_cpus

MOST = num_available_cpus() * MOST_THREADS_PER_CORE


def test_as_many_threads_as_cores_bear() -> None:
    require_room("--workers", MOST, None, False)
    require_room("--workers", MOST // 2, 2, False)


@pytest.mark.parametrize(("workers", "threads"), [(MOST + 1, None), (1, MOST + 1), (MOST // 2 + 1, 2)])
def test_more_are_refused_unless_asked_for(workers: int, threads: int | None) -> None:
    with pytest.raises(
        InputError, match=r"--workers: .* at most [\d,]+ (workers|threads) fit; give fewer, or --oversubscribe"
    ):
        require_room("--workers", workers, threads, False)
    require_room("--workers", workers, threads, True)
    with pytest.raises(InputError, match=r"fit; give fewer$"):
        require_room("--workers", workers, threads, None)


def test_nothing_lifts_the_limit_of_memory() -> None:
    free_bytes = available_bytes()
    assert free_bytes is not None
    with pytest.raises(InputError, match=r"need at least .* GB are free; at most [\d,]+ fit"):
        require_room("--workers", free_bytes // RANK_BYTES + 1000, None, True)


def test_a_control_group_may_have_less_than_the_machine(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    4096 kB\n")
    assert available_bytes(meminfo, tmp_path) == 4 << 20
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert available_bytes(meminfo, tmp_path) == 600_000
    assert available_bytes(tmp_path / "none", tmp_path / "none") is None


def test_a_control_group_may_allow_few_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pids.max").write_text("50\n")
    (tmp_path / "pids.current").write_text("20\n")
    assert processes_left(tmp_path) == 30
    monkeypatch.setattr(limits, "processes_left", lambda: 30)
    require_room("--workers", 15, None, True)
    with pytest.raises(
        InputError, match=r"16 workers of 1 threads are at least 32 .* 30 more .* at most 15 workers fit"
    ):
        require_room("--workers", 16, None, True)
