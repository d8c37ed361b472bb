"""`samovar doctor`: its measurements, output and files, and the faults that it finds."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samovar.cli import doctor as command
from samovar.cli.command import require_place
from samovar.cli.doctor import advice, host_rows, record_rows
from samovar.core.errors import SamovarError
from samovar.core.machine import NOMINAL, CalibrationRecord, TransportFigures
from samovar.core.plain import from_plain, to_plain
from samovar.launcher.calibrate import HostLinkFigures, calibrate
from samovar.report.host import HostFigures, diagnose, read_host
from samovar.report.profile import LayerProfile, Profile, load_profile, save_profile
from samovar.strategies.catalog import ADVICE, shortest_step_s
from tests.multiproc.command import run

SAMOVAR = str(Path(sys.executable).with_name("samovar"))
TIMEOUT_S = 250.0
GIB = 1 << 30
pytestmark = pytest.mark.timeout(300)  # on a busy machine

HEALTHY = HostFigures(
    cpu_model="Test 3000",
    cores_present=8,
    cpus_allowed=tuple(range(8)),
    numa_nodes=1,
    cpu_quota_cores=None,
    governors=("performance",),
    load_average=0.5,
    memory_total_bytes=64 * GIB,
    memory_available_bytes=60 * GIB,
    memory_limit_bytes=None,
    swap_used_bytes=0,
    memory_pressure_percent=0.0,
    memfd_error=None,
    huge_pages="madvise",
    shared_huge_pages="advise",
    limits={"open files": 1024, "processes": None, "address space": None, "locked memory": 8 << 20},
    kernel="Linux 6.1",
    versions={"python": "3.11.7"},
    missing_modules=(),
)


def doctor(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [SAMOVAR, "doctor", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def test_it_prints_measures_and_saves_a_record_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    ended = doctor("--json", "--save", str(path))
    assert (ended.returncode, ended.stderr) == (0, "")
    told = json.loads(ended.stdout)
    record = CalibrationRecord.load(path)
    assert from_plain(CalibrationRecord, told["calibration"]) == record
    assert record.cores == len(read_host().cores)
    assert {"python", "torch", "samovar"} <= told["host"]["versions"].keys()
    assert all(finding["text"] and finding["next_step"] for finding in told["findings"])
    sizes = [size for size, _ in record.transports["shm"].bandwidth]
    assert (sizes[0], sizes[-1]) == (4 << 10, 64 << 20)


def test_one_core_is_enough_and_off_a_terminal_it_prints_plain_lines(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    ended = subprocess.run(
        ["taskset", "-c", str(read_host().cpus_allowed[0]), SAMOVAR, "doctor", "--save", path],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert CalibrationRecord.load(path).cores == 1
    assert ended.stdout.isascii()
    for words in (
        "What is here",
        "processor",
        "NUMA nodes",
        "versions",
        "Measured",
        "wake-up by futex",
        "4 KiB",
        "What to train with",
    ):
        assert words in ended.stdout


@pytest.mark.parametrize("path", ["nowhere/calibration.json", "."])
def test_a_file_that_cannot_be_written_is_refused(path: str, tmp_path: Path) -> None:
    ended = doctor("--save", str(tmp_path / path))
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"samovar: error: --save {tmp_path / path}: ")


@pytest.mark.parametrize("words", [("doctor", "--save"), ("time", "--model", "nothing.prototxt", "--profile")])
def test_a_file_of_another_kind_is_not_replaced(words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "victim.prototxt"
    path.write_text('net: "net.prototxt"')
    ended = run(*words, path, folder=tmp_path)
    assert ended.return_code == 2
    assert ended.error == f"{words[-1]} {path}: exists, and does not hold what is saved here; give another file"
    assert path.read_text() == 'net: "net.prototxt"'

    require_place("--save", tmp_path / "new", CalibrationRecord.load)
    path.write_text(json.dumps(to_plain(NOMINAL)))
    require_place("--save", path, CalibrationRecord.load)
    save_profile(Profile("lenet", 64, (LayerProfile("ip", num_parameters=1),)), path)
    require_place("--profile", path, load_profile)


@pytest.mark.slow
def test_a_disk_that_refuses_the_file_is_told() -> None:
    ended = doctor("--save", "/proc/calibration.json")
    assert ended.returncode == 2
    assert ended.stderr.startswith("samovar: error: /proc/calibration.json cannot be written: ")
    assert ended.stderr.endswith("; give --save a file elsewhere\n")


def test_it_ends_with_the_strategies_that_fit() -> None:
    small = dataclasses.replace(HEALTHY, cpus_allowed=(3,))
    assert advice(small, ()) == [("on this host", "one worker: there is one core")]
    rows = dict(advice(HEALTHY, ()))
    assert rows["on this host"].startswith("up to 8 workers")
    assert [words.partition(":")[0] for words in list(rows.values())[1:]] == [one.flags for one in ADVICE]
    assert "--strategy sync --recipe auto" in [one.flags for one in ADVICE]


def test_cores_without_time_are_not_counted() -> None:
    """A container sees all cores, and may have the time of few."""
    limited = dataclasses.replace(HEALTHY, cpu_quota_cores=2.5)
    assert dict(advice(limited, ()))["on this host"].startswith("up to 2 workers")
    here = read_host()
    assert calibrate(dataclasses.replace(here, cpu_quota_cores=1.0)).cores == 1


def test_a_measured_link_is_fast_for_steps_ten_times_as_long_as_an_exchange() -> None:
    """A message of 4 MB takes 0.04 s at 100 MB/s, and its answer as long."""
    link = HostLinkFigures("host1", TransportFigures(1e-5, 1e-3, 1e-3, ((1 << 20, 100e6),)), 0.0)
    assert shortest_step_s(link.figures) == pytest.approx(0.82)
    assert dict(advice(HEALTHY, (link,)))["to host1"].endswith("whose step takes 0.82 s or longer")


def test_a_healthy_machine_has_no_findings() -> None:
    assert diagnose(HEALTHY, NOMINAL) == []


@pytest.mark.parametrize(
    ("changes", "level", "text", "next_step"),
    [
        ({"memfd_error": "Operation not permitted"}, "error", "memfd_create", "seccomp"),
        ({"missing_modules": ("torch",)}, "error", "PyTorch is not installed", "pip install torch"),
        ({"missing_modules": ("PIL",)}, "error", "module PIL is not installed", "pip install pillow"),
        ({"cpus_allowed": (0, 1)}, "warning", "only 2 of 8 cores", "taskset"),
        ({"cpu_quota_cores": 2.5}, "warning", "time of 2.5 cores on 8", "--workers 2"),
        ({"cpu_quota_cores": 0.5}, "warning", "time of 0.5 cores on 8", "--workers 1"),
        ({"load_average": 6.0}, "hint", "6.0 of 8 cores busy", "end them"),
        ({"load_average": 10.4}, "hint", "8.0 of 8 cores busy (load average 10.4)", "end them"),
        ({"memory_limit_bytes": 4 * GIB}, "warning", "memory limit is 4.0 GiB of 64.0", "raise it"),
        ({"memory_available_bytes": GIB}, "warning", "only 1.0 GiB", "fewer workers"),
        ({"memory_pressure_percent": 40.0, "swap_used_bytes": GIB}, "warning", "40 % of the time, 1.0 GiB", "fewer"),
        ({"limits": {"open files": 64}}, "warning", "only 64 files", "ulimit -n"),
        ({"limits": {"processes": 50}}, "warning", "only 50 processes", "ulimit -u"),
        ({"limits": {"address space": 8 * GIB}}, "warning", "8.0 GiB", "ulimit -v"),
        ({"governors": ("powersave",)}, "hint", "powersave", "cpupower"),
        ({"shared_huge_pages": "never"}, "hint", "4 KiB pages", "shmem_enabled"),
    ],
)
def test_what_is_wrong_is_found_with_a_next_step(
    changes: dict[str, Any], level: str, text: str, next_step: str
) -> None:
    (finding,) = diagnose(dataclasses.replace(HEALTHY, **changes), NOMINAL)
    assert finding.level == level
    assert text in finding.text
    assert next_step in finding.next_step


def test_measuring_shows_slow_wake_ups_and_the_worst_comes_first() -> None:
    sick = dataclasses.replace(HEALTHY, governors=("powersave",), cpus_allowed=(3,), memfd_error="refused")
    slow = dataclasses.replace(NOMINAL, wake_up_s=1e-3)
    findings = diagnose(sick, slow)
    assert [finding.level for finding in findings] == ["error", "warning", "hint", "hint"]
    assert "1000 us" in findings[-1].text


def test_what_cannot_be_saved_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sick = dataclasses.replace(HEALTHY, missing_modules=("torch",), memfd_error="refused")
    monkeypatch.setattr("samovar.cli.doctor.read_host", lambda: sick)
    with pytest.raises(SamovarError, match=r"--save .*cal\.json: is not written, because nothing was measured"):
        command.doctor(save=tmp_path / "cal.json")
    assert "is refused: refused" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "cal.json").exists()


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_kernel_is_read_with_control_groups_of_version_two(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Fast One\n",
        "proc/meminfo": "MemTotal:  2048 kB\nMemAvailable: 1024 kB\nSwapTotal: 512 kB\nSwapFree: 256 kB\n",
        "proc/pressure/memory": "some avg10=12.50 avg60=0.00 avg300=0.00 total=0\n",
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/outer/memory.max": "4096\n",
        "sys/fs/cgroup/outer/memory.current": "1024\n",
        "sys/fs/cgroup/outer/inner/cpu.max": "max 100000\n",
        "sys/fs/cgroup/outer/inner/memory.max": "max\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/devices/system/node/node0/x": "",
        "sys/devices/system/node/node1/x": "",
    }
    for cpu in read_host().cpus_allowed:
        files[f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"] = "schedutil\n"
    write(tmp_path, files)
    host = read_host(tmp_path)
    assert (host.cpu_model, host.numa_nodes, host.governors) == ("Fast One", 2, ("schedutil",))
    assert (host.cpu_quota_cores, host.memory_limit_bytes) == (1.5, 4096)
    assert (host.memory_total_bytes, host.swap_used_bytes) == (2 << 20, 1 << 18)
    assert host.memory_available_bytes == 4096 - 1024, "the group has less than the machine"
    assert host.memory_pressure_percent == 12.5
    assert (host.huge_pages, host.shared_huge_pages) == ("madvise", None)


def test_control_groups_of_version_one_also_where_a_container_hides_the_path(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "8192\n",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
        },
    )
    host = read_host(tmp_path)
    assert (host.cpu_quota_cores, host.memory_limit_bytes) == (0.5, 8192)


def test_a_machine_that_tells_nothing_can_be_shown(tmp_path: Path) -> None:
    host = read_host(tmp_path)
    assert host.memory_limit_bytes is None
    assert dict(host_rows(host))["governor"] == "not shown"
    assert dict(record_rows(NOMINAL))["wake-up by futex"] == "60 us"
