"""`make demo` as a newcomer runs it: what it prints, and what it leaves."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.multiproc.command import TIMEOUT_S, result_of


@pytest.mark.slow
def test_the_demo_trains_two_workers_and_compares_them_with_one(tmp_path: Path, repository_root: Path) -> None:
    """Data and runs go where it is started."""
    ended = demo(repository_root, tmp_path)
    assert ended.returncode == 0, ended.stderr
    lone, both = (result_of(tmp_path / "runs" / f"demo-{count}") for count in ("1-worker", "2-workers"))
    assert lone["replicas_equal"] is both["replicas_equal"] is True
    assert (lone["steps"], both["steps"]) == (150, 600)
    assert both["test_accuracy"] > 0.97
    assert f"test accuracy {both['test_accuracy']:.4f}" in ended.stdout
    assert f"weights {both['weights_sha256'][:8]}… equal on both ranks" in ended.stdout
    one, two = lone["samples_per_second"], both["samples_per_second"]
    assert ended.stdout.splitlines()[-1] == (
        f"1 worker {one:,.0f} samples/s -> 2 workers {two:,.0f} samples/s: {two / one:.2f}x"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"data", "runs"}


@pytest.mark.slow
def test_the_demo_ends_as_the_command_that_fails_in_it(tmp_path: Path, repository_root: Path) -> None:
    (tmp_path / "data").touch()  # where its images' folder should be
    ended = demo(repository_root, tmp_path)
    assert ended.returncode > 0
    assert re.search(r"^samovar: error: .*data", ended.stderr, re.MULTILINE), ended.stderr
    assert "samples/s ->" not in ended.stdout


def demo(root: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, root / "examples" / "lenet" / "demo.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
