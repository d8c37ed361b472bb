"""Two runs that are started at once on one machine, each with ranks pinned to cores of their own."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from samovar.formats.caffe.caffemodel import LayerRecord, encode_caffemodel
from tests.multiproc.command import SAMOVAR, TIMEOUT_S, wait_until
from tests.multiproc.held_file import held
from tests.multiproc.nets import write_net, write_solver

# A network of its own: other runs of this machine are not seen there.
ALONE = ("unshare", "--map-root-user", "--net")


def can_be_alone() -> bool:
    return subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0


def is_readable(path: Path) -> bool:
    return path.exists() and bool(path.read_text())


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.skipif(not can_be_alone(), reason="needs network namespaces")
def test_two_trainings_at_once_take_two_cores(digits: Path, tmp_path: Path) -> None:
    solver, weights = write_solver(write_net(tmp_path, digits), 20), tmp_path / "first.caffemodel"
    blobs = [np.full((10, 32), 0.01, np.float32), np.zeros(10, np.float32)]
    weights.write_bytes(encode_caffemodel("narrow", [LayerRecord("ip2", "InnerProduct", ["ip1"], ["ip2"], blobs)]))
    outs = tmp_path / "one", tmp_path / "two"
    train = f"{SAMOVAR} train --solver {solver} --weights {weights} --threads-per-worker 1 --out"
    shell = ["sh", "-c", f"{train} {outs[0]} & {train} {outs[1]}; code=$?; wait $! && exit $code"]
    # Neither ends before both have begun.
    with held(weights) as file, subprocess.Popen([*ALONE, *shell], stdout=subprocess.DEVNULL) as both:
        wait_until(lambda: all(is_readable(out / "config.json") for out in outs), "both begin")
        file.let_go()
        assert both.wait(TIMEOUT_S) == 0
    cores = [json.loads((out / "config.json").read_text())["cpus"][0] for out in outs]
    assert [len(own) for own in cores] == [1, 1]
    assert cores[0] != cores[1]
