"""The leak check finds every kind of leak, and leaves tidy tests alone."""

import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

LEAKING = """
import os, socket, subprocess, sys, threading
from pathlib import Path

import psutil
import pytest

held = []

def leave_name(name):
    # Held here, it is a stranger's to the tests that run beside these.
    held.append(Path("/dev/shm", name).open("w"))

def await_start(*words):
    while not any(process.info["cmdline"] == list(words) for process in psutil.process_iter(["cmdline"])):
        pass

def orphan(seconds):
    subprocess.run(["sh", "-c", f"setsid sleep {seconds} > /dev/null 2>&1 &"], check=True)
    await_start("sleep", str(seconds))

@pytest.fixture(scope="module")
def of_file():
    orphan(4000)
    leave_name(os.environ["NAME_TO_LEAVE"] + "-of-file")

@pytest.fixture(scope="session")
def of_session():
    orphan(5000)

def test_child():
    held.append(subprocess.Popen(["sleep", "1000"]))

def test_zombie():
    child = subprocess.Popen(["true"])
    held.append(child)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

def test_orphan():
    orphan(2000)

def test_orphan_without_our_environment():
    command = "import subprocess; subprocess.Popen(['sleep', '3000'], env={})"
    held.append(subprocess.Popen([sys.executable, "-c", command + "; input()"], stdin=subprocess.PIPE))
    await_start("sleep", "3000")

def test_thread():
    threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()

def test_file(tmp_path):
    held.append((tmp_path / "left.txt").open("w"))

def test_raw_descriptor(tmp_path):
    os.open(tmp_path, os.O_RDONLY)

def test_pipe():
    os.pipe()

def test_memory_file():
    os.memfd_create("window")

def test_listening_port():
    held.append(socket.create_server(("127.0.0.1", 0)))

def test_bound_port():
    held.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    held[-1].bind(("127.0.0.1", 0))

def test_abstract_socket():
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].bind("\\0samovar-test-" + str(os.getpid()))
    held[-1].listen()

def test_shared_memory_name():
    leave_name(os.environ["NAME_TO_LEAVE"])

def test_fixtures(of_file, of_session):
    pass
"""

TIDY = """
import os, socket, subprocess, sys, threading, time
from pathlib import Path

import pytest

@pytest.fixture(scope="module", autouse=True)
def server():
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield
        process.kill()

def test_nothing():
    pass

def test_child_waited_for():
    subprocess.run(["true"], check=True)

def test_thread_just_ending():
    threading.Thread(target=time.sleep, args=(0.05,)).start()

def test_orphan_just_ending():
    subprocess.run(["sh", "-c", "sleep 0.05 > /dev/null 2>&1 &"], check=True)

def test_file_that_nobody_holds(tmp_path):
    class Holder: pass
    holder = Holder()
    holder.itself, holder.descriptor = holder, (tmp_path / "garbage.txt").open("w")

def test_shared_memory_name_removed():
    path = Path("/dev/shm", "samovar-tidy-" + str(os.getpid()))
    path.touch()
    path.unlink()

def test_socket_closed():
    socket.create_server(("127.0.0.1", 0)).close()
"""

EXPECTED = {
    "test_child": "(sleep 1000)",
    "test_zombie": "(ended, but nobody waited for it)",
    "test_orphan": "(sleep 2000)",
    "test_orphan_without_our_environment": "(sleep 3000)",
    "test_thread": "daemon thread 'forgotten'",
    "test_file": "/left.txt",
    "test_raw_descriptor": "descriptor ",
    "test_pipe": ": pipe:[",
    "test_memory_file": "memfd:window",
    "test_listening_port": "socket on 127.0.0.1 port ",
    "test_bound_port": "socket on 127.0.0.1 port ",
    "test_abstract_socket": "unix socket @samovar-test-",
    "test_shared_memory_name": "shared memory name /dev/shm/samovar-leak-check-",
}
# The last test of a file tells what the fixtures of the file leave, and the last of all what others do.
OF_FIXTURES = {
    "a fixture of this file leaves behind:": ["(sleep 4000)", "-of-file"],
    "a fixture of several files leaves behind:": ["(sleep 5000)"],
}


def outcomes(
    folder: Path, source: str, root: Path, options: tuple[str, ...] = (), name_to_leave: str = ""
) -> dict[str, str]:
    """Test name to complaint ("" where it passed) of a pytest run of its own, checked as this one is."""
    (folder / "tests").mkdir()
    for name in ("conftest.py", "leak_check.py", "loaded.py"):
        shutil.copy(root / "tests" / name, folder / "tests" / name)
    (folder / "tests" / "test_inner.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    command += [*options, f"--rootdir={folder}", "--junitxml=out.xml", "tests"]
    environment = {"PATH": "/usr/bin:/bin", "NAME_TO_LEAVE": name_to_leave}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (folder / "out.xml").exists(), run.stdout + run.stderr
    cases = ElementTree.parse(folder / "out.xml").iter("testcase")
    return {case.attrib["name"]: "".join(case.itertext()) for case in cases}


@pytest.fixture(scope="module")
def leaks(tmp_path_factory: pytest.TempPathFactory, repository_root: Path) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("leaking")
    left = Path("/dev/shm") / f"samovar-leak-check-{folder.parent.name}"
    try:
        return outcomes(folder, LEAKING, repository_root, ("--leak-grace=0.1",), left.name)
    finally:
        for path in (left, left.with_name(f"{left.name}-of-file")):
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_test_that_leaves_something_fails_and_is_told_what(leaks: dict[str, str], name: str) -> None:
    assert "the test leaves behind:" in leaks[name]
    assert EXPECTED[name] in leaks[name]


@pytest.mark.parametrize("said", OF_FIXTURES)
def test_what_a_fixture_leaves_is_told_at_its_end(leaks: dict[str, str], said: str) -> None:
    assert said in leaks["test_fixtures"]
    told = leaks["test_fixtures"].partition(said)[2]
    assert all(words in told for words in OF_FIXTURES[said])
    assert "the test leaves behind:" not in leaks["test_fixtures"]


def test_every_leak_has_its_test(leaks: dict[str, str]) -> None:
    assert leaks.keys() == EXPECTED.keys() | {"test_fixtures"}


def test_a_tidy_test_passes(tmp_path: Path, repository_root: Path) -> None:
    found = outcomes(tmp_path, TIDY, repository_root)
    assert len(found) == 7
    assert set(found.values()) == {""}


OPTIONAL = """
import pytest

@pytest.mark.slow
def test_slow():
    assert False, "the slow test ran"

def test_golden(golden_folder):
    assert False, f"golden data in {golden_folder.name}"

def test_data(data_folder):
    assert False, f"data sets in {data_folder.name}"
"""


def test_slow_tests_and_those_without_their_data_are_skipped_with_the_reason(
    tmp_path: Path, repository_root: Path
) -> None:
    found = outcomes(tmp_path, OPTIONAL, repository_root)
    assert "slow: give --run-slow" in found["test_slow"]
    assert "needs recorded data: give --golden DIR" in found["test_golden"]
    assert "needs recorded data: give --data-sets DIR" in found["test_data"]


def test_options_bring_slow_tests_and_data(tmp_path: Path, repository_root: Path) -> None:
    (tmp_path / "recorded").mkdir()
    options = ("--run-slow", "--golden=recorded", "--data-sets=nowhere")
    found = outcomes(tmp_path, OPTIONAL, repository_root, options)
    assert "the slow test ran" in found["test_slow"]
    assert "golden data in recorded" in found["test_golden"]
    assert "--data-sets nowhere is not a folder" in found["test_data"]
