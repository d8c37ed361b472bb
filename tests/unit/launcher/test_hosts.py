"""The files that host 0 of a run has for the others, and the words for a signal that ends a host before the run."""

import subprocess
import sys
from pathlib import Path

import pytest

from samovar.config import RunConfig
from samovar.core.errors import InputError
from samovar.launch.script import Hosts
from samovar.launcher.hosts import _files_of, place_of


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


def test_the_environment_names_the_key_where_no_flag_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMOVAR_KEY_FILE", "job.key")
    places = [place_of(Hosts(2, 0, "host0", 29_510), given) for given in (None, Path("other.key"))]
    assert [place and place.key_file for place in places] == [Path("job.key"), Path("other.key")]


def test_a_signal_before_the_run_is_told_to_other_hosts_by_its_name() -> None:
    program = (  # the module takes signals
        "from samovar.cli.entry import _Ended\n"
        "from samovar.launcher.outcomes import told\n"
        "print(told(_Ended(15))['error'])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "ended by SIGTERM\n"
