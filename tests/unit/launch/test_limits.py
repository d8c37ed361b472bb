"""The limits of one machine, and folders that are deleted."""

from pathlib import Path

import pytest

from samovar.core.errors import InputError
from samovar.core.host import available_bytes, num_available_cpus
from samovar.launch import limits
from samovar.launch.limits import MOST_THREADS_PER_CORE, RANK_BYTES, processes_left, require_room

MOST = num_available_cpus() * MOST_THREADS_PER_CORE


def test_as_many_threads_as_cores_bear() -> None:
    require_room("--workers", MOST, None, False)
    require_room("--workers", MOST // 2, 2, False)


@pytest.mark.parametrize(("workers", "threads"), [(MOST + 1, None), (1, MOST + 1), (MOST // 2 + 1, 2)])
def test_more_are_refused_unless_asked_for(workers: int, threads: int | None) -> None:
    with pytest.raises(
        InputError, match=r"--workers: .* At most [\d,]+ (workers|threads) fit; give fewer, or --oversubscribe"
    ):
        require_room("--workers", workers, threads, False)
    require_room("--workers", workers, threads, True)
    with pytest.raises(InputError, match=r"fit; give fewer$"):
        require_room("--workers", workers, threads, None)


def test_nothing_lifts_the_limit_of_memory() -> None:
    free_bytes = available_bytes()
    assert free_bytes is not None
    with pytest.raises(InputError, match=r"need at least .* GB are free. At most [\d,]+ fit"):
        require_room("--workers", free_bytes // RANK_BYTES + 1000, None, True)


def write_files(root: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")


# Of a group of either version, and of one inside a container, whose path is the host's.
MEMORY_GROUPS = {
    "version 2": {
        "proc/self/cgroup": "0::/outer/inner",
        "sys/fs/cgroup/outer/memory.max": 1_000_000,
        "sys/fs/cgroup/outer/memory.current": 900_000,
        "sys/fs/cgroup/outer/memory.stat": "anon 400000\ninactive_file 300000\nactive_file 200000\nslab 7",
        "sys/fs/cgroup/outer/inner/memory.max": "max",
        "sys/fs/cgroup/outer/inner/memory.current": 900_000,
    },
    "version 1": {
        "proc/self/cgroup": "9:pids:/job\n4:memory:/job",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": 1_000_000,
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": 400_000,
        "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
        "sys/fs/cgroup/memory/memory.usage_in_bytes": 800_000,
    },
    "container": {
        "proc/self/cgroup": "4:memory:/docker/abc",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": 1_000_000,
        "sys/fs/cgroup/memory/memory.usage_in_bytes": 900_000,
        "sys/fs/cgroup/memory/memory.stat": "active_file 1\ntotal_active_file 300000\ntotal_inactive_file 200000",
    },
}


@pytest.mark.parametrize("name", MEMORY_GROUPS)
def test_a_control_group_may_have_less_than_the_machine(tmp_path: Path, name: str) -> None:
    assert available_bytes(tmp_path) is None
    write_files(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    4096 kB"})
    assert available_bytes(tmp_path) == 4 << 20
    write_files(tmp_path, MEMORY_GROUPS[name])
    assert available_bytes(tmp_path) == 600_000


@pytest.mark.parametrize("group", ["0::/job", "8:pids:/job"])
def test_a_control_group_may_allow_few_processes(tmp_path: Path, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = f"sys/fs/cgroup/{group.split(':')[1]}/job"
    write_files(tmp_path, {"proc/self/cgroup": group, f"{folder}/pids.max": 50, f"{folder}/pids.current": 20})
    assert processes_left(tmp_path) == 30
    monkeypatch.setattr(limits, "processes_left", lambda: 30)
    require_room("--workers", 15, None, True)
    with pytest.raises(
        InputError, match=r"16 workers of 1 threads are at least 32 .* 30 more .* At most 15 workers fit"
    ):
        require_room("--workers", 16, None, True)
