"""Run folders on disks that refuse: real mounts, as root only."""

import re
from pathlib import Path

import pytest

from tests.multiproc.command import last_step, metrics_of, result_of, run, succeed
from tests.multiproc.disk import Disk, disk
from tests.multiproc.nets import write_net, write_solver

NUM_STEPS = 60


def on(small: Disk, solver: Path, out: Path, *flags: object) -> tuple[int, str, str]:
    """Train on the small disk: exit code, what was said, the folder as seen from here."""
    arguments = ("train", "--solver", solver, "--workers", 1, "--threads-per-worker", 1, "--out", out, *flags)
    ended = run(*arguments, folder=solver.parent, prefix=small.command(solver.parent))
    assert "Traceback" not in ended.errors + ended.output
    return ended.return_code, ended.error if ended.return_code else "", ended.output


@pytest.mark.slow
def test_a_disk_that_gets_full_costs_the_snapshot_being_saved_and_no_more(tmp_path: Path, digits: Path) -> None:
    """A snapshot has about 140 kB (Caffe's pair and Samovar's own): of three on 500 kB the first ones fit."""
    solver = write_solver(write_net(tmp_path, digits), NUM_STEPS, snapshot=10)
    succeed("train", "--solver", solver, "--workers", 1, "--threads-per-worker", 1, "--out", "whole", folder=tmp_path)
    with disk(tmp_path / "small", "500k") as small:
        out = small.place / "out"
        code, error, _ = on(small, solver, out)
        seen = small.inside(out)
        assert code == 2
        said = re.match(rf"snapshot of step (\d+) not saved in {out}/snapshots: No space left on device \(", error)
        assert said, error
        saved = int(said[1]) - 10
        assert saved >= 10
        assert f"the last good snapshot, step {saved}, is intact" in error
        assert "--out" in error
        assert [path for path in seen.rglob(".*")] == []
        assert (seen / "snapshots" / "latest").read_text() == f"step_{saved:08}\n"
        assert saved <= last_step(seen) <= int(said[1])
        goes_on_with_room(small, solver, out, saved)
        assert result_of(seen)["weights_sha256"] == result_of(tmp_path / "whole")["weights_sha256"]
        steps = [line["step"] for line in metrics_of(seen, "train")]
        assert steps == list(range(1, NUM_STEPS + 1))


def goes_on_with_room(small: Disk, solver: Path, out: Path, saved: int) -> None:
    """Older snapshots make room; `latest` is the last good one."""
    for path in small.inside(out / "snapshots").glob("step_*"):
        if path.name != f"step_{saved:08}":
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
    text = solver.read_text()
    solver.write_text(text.replace("snapshot: 10", "snapshot: 0"))
    code, error, output = on(small, solver, out, "--snapshot", "latest")
    assert code == 0, error
    assert f"iterations {saved} to {NUM_STEPS}, resumed" in output


def test_a_disk_that_cannot_be_written(tmp_path: Path, digits: Path) -> None:
    solver = write_solver(write_net(tmp_path, digits), NUM_STEPS)
    with disk(tmp_path / "small", "500k", "ro") as small:
        for out in (small.place, small.place / "out"):
            code, error, output = on(small, solver, out)
            assert (code, output) == (2, "")
            assert error.startswith(f"cannot use {out} as run folder: Read-only file system; ")
            assert "--out" in error


def test_figures_of_a_script_on_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    """No rank is started."""
    (tmp_path / "script.py").write_text("print('started')")
    with disk(tmp_path / "small", "500k", "ro") as small:
        out = small.place / "out"
        ended = run("run", "-n", 2, "--metrics", out, "script.py", folder=tmp_path, prefix=small.command(tmp_path))
    assert (ended.return_code, ended.output) == (2, "")
    advice = "give a folder that can be written to with --metrics"
    assert ended.error == f"cannot use {out} as run folder: Read-only file system; {advice}"


def test_a_disk_that_is_full_from_the_start(tmp_path: Path, digits: Path) -> None:
    """Nothing can be begun there, and nothing is left."""
    solver = write_solver(write_net(tmp_path, digits), NUM_STEPS)
    with disk(tmp_path / "small", "8k") as small:
        small.inside(small.place / "filler").write_bytes(bytes(8192))
        code, error, _ = on(small, solver, small.place / "out")
        assert code == 2
        assert "No space left on device" in error
        assert str(small.place / "out") in error
        assert [path.name for path in small.inside(small.place).iterdir()] == ["filler"]
