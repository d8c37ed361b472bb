"""The files that host 0 of a run has for the others, and the words for a signal that ends a host before the run."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from samovar.config import RunConfig
from samovar.core.errors import InputError
from samovar.frontends.caffe.solver import load_solver
from samovar.launch.meeting import Met
from samovar.launch.script import Hosts
from samovar.launcher.hosts import _digest, _files_of, place_of
from samovar.launcher.other_hosts import Host0, OtherHost
from tests.multiproc.nets import write_net, write_solver
from tests.unit.launch.test_meeting import hellos, met, places


def test_weights_that_host_0_lacks_are_named(tmp_path: Path) -> None:
    (tmp_path / "there.caffemodel").touch()
    weights = (tmp_path / "there.caffemodel", tmp_path / "none.caffemodel")
    with pytest.raises(InputError, match=r"^--weights .*none\.caffemodel: no such file \(looked from "):
        _files_of(RunConfig("test", Path("net.prototxt"), weights=weights))


def test_a_folder_in_the_place_of_a_snapshot_has_only_files_to_send(tmp_path: Path) -> None:
    """A run's folder, say, which ranks refuse by name: it holds the folder of snapshots."""
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "config.json").touch()
    files = _files_of(RunConfig("train", Path("solver.prototxt"), snapshot=tmp_path))
    assert files == {f"snapshot/{tmp_path.name}/config.json": tmp_path / "config.json"}


def test_fields_of_a_solver_count_also_on_the_line_of_a_path(tmp_path: Path) -> None:
    """The net's place is each host's own, and its line may hold the rate."""
    solver = write_solver(write_net(tmp_path, tmp_path), 12)
    line = solver.read_text().replace("\n", " ")
    digests = []
    for text in (solver.read_text(), line, line.replace("base_lr: 0.0", "base_lr: 0.9")):
        solver.write_text(text)
        digests.append(_digest(RunConfig("train", solver), load_solver(solver)))
    assert digests[0] == digests[1] != digests[2]


def test_the_environment_names_the_key_where_no_flag_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMOVAR_KEY_FILE", "job.key")
    places = [place_of(Hosts(2, 0, "host0", 29_510), given) for given in (None, Path("other.key"))]
    assert [place and place.key_file for place in places] == [Path("job.key"), Path("other.key")]


def test_a_signal_before_the_run_is_told_to_other_hosts_by_its_name() -> None:
    program = (  # the module takes signals
        "from samovar.cli.entry import _Ended\nfrom samovar.report.result import told\nprint(told(_Ended(15))['error'])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "ended by SIGTERM\n"


def changed_on_its_way(folder: Path, change: Callable[[Path], None], problem: str) -> tuple[str, str]:
    """The errors of host 0 and of another one that fetches a file of it, which is changed meanwhile."""
    (path := folder / "long.caffemodel").write_bytes(b"x" * 100)
    first, second = (host for host in met(places(2), hellos(1, 1)) if isinstance(host, Met))
    host_0, other, found = Host0(first, 60.0), OtherHost(second, 60.0), list[str]()

    def begin() -> None:
        try:
            host_0.begin({}, {"weights/0/long.caffemodel": path})
        except InputError as error:
            found.append(str(error))
            host_0.tell_outcome(error)

    thread = threading.Thread(target=begin)
    thread.start()
    _config, files = other.begun()
    change(path)
    with pytest.raises(InputError, match=problem) as raised:
        other.fetch(0, files["weights/0/long.caffemodel"], folder / "copy")
    other.give_up(raised.value)
    thread.join()
    for host in (host_0, other):
        host.close()
    (said,) = found
    return said, str(raised.value)


def test_a_file_that_becomes_shorter_on_its_way_ends_the_run_on_both_hosts(tmp_path: Path) -> None:
    problem = "copy became shorter while it was copied; leave it as it is"
    host_0, other = changed_on_its_way(tmp_path, partial(os.truncate, length=10), problem)
    assert host_0 == f"host 1 (host1): {other}"


def test_a_file_that_disappears_on_its_way_ends_the_run_on_both_hosts(tmp_path: Path) -> None:
    problem = r"long.caffemodel: cannot be sent to host 1, .*: No such file or directory; leave it as it is"
    host_0, other = changed_on_its_way(tmp_path, Path.unlink, problem)
    assert host_0 == other
