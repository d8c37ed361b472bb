"""`samovar train` on hosts with networks of their own: four workers end with the same weights on 1, 2 and 4 hosts."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from samovar.report.metrics import read_metrics
from tests.multihost.namespaces import Network, left_over, switched_hosts
from tests.multihost.train_run import started
from tests.multiproc.command import result_of, succeed
from tests.parity.test_caffe_runs import LOSS_TOLERANCE, WEIGHT_TOLERANCES, assert_weights_equal

NUM_STEPS = 40
SOLVER = 'display: 20 base_lr: 0.001 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.004 random_seed: 1'
SHAPES = ((4,), (2, 2), (1, 1, 1, 1))
PLANS = ("ring", "halving-doubling", "kary-tree", "tree", "server")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.usefixtures("_namespaces")]


@pytest.fixture
def network() -> Iterator[Network]:
    with switched_hosts(4) as network:
        yield network
    assert left_over() == []


def homes(folder: Path, workers: tuple[int, ...]) -> list[Path]:
    """The working folders of the hosts of a run."""
    found = [folder / f"{'-'.join(map(str, workers))}-host{number}" for number in range(len(workers))]
    for home in found:
        home.mkdir()
    return found


def train(network: Network, folder: Path, workers: tuple[int, ...], *arguments: object) -> Path:
    """The run folder of a run on the first hosts of the network."""
    hosts = network.hosts[: len(workers)]
    out = "-".join(map(str, workers))
    if len(workers) == 1:
        flags = ("--workers", workers[0], "--threads-per-worker", 1, "--out", folder / out)
        succeed("train", *arguments, *flags, folder=folder)
        return folder / out
    prefixes = [host.prefix for host in hosts]
    with started(folder, workers, *arguments, prefixes=prefixes, address=hosts[0].address, out=out) as run_:
        run_.succeed()
    return folder / out


@pytest.mark.parametrize("plan", [*(("--collective", name) for name in PLANS), ("--exact", 4)], ids=lambda p: p[1])
@pytest.mark.parametrize(("net", "data"), [("lenet", "mnist"), ("cifar10_full", "cifar-10")])
def test_the_same_weights_on_any_hosts(
    repository_root: Path,
    data_folder: Path,
    tmp_path: Path,
    network: Network,
    net: str,
    data: str,
    plan: tuple[object, ...],
) -> None:
    out = {"mnist": "data", "cifar-10": "data/cifar10"}[data]
    succeed("data", data.replace("-", ""), "--source", data_folder / data, "--out", out, folder=tmp_path)
    for home in (home for shape in SHAPES[1:] for home in homes(tmp_path, shape)):
        (home / "data").symlink_to(tmp_path / "data")
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{repository_root}/examples/zoo/{net}/train_val.prototxt" max_iter: {NUM_STEPS} {SOLVER}')
    flags = ("--solver", solver, *plan)
    results = {shape: result_of(train(network, tmp_path, shape, *flags)) for shape in SHAPES}
    assert {result["steps"] for result in results.values()} == {NUM_STEPS}
    hashes = {shape: result["weights_sha256"] for shape, result in results.items()}
    assert len(set(hashes.values())) == 1, hashes
    assert results[1, 1, 1, 1]["transport"] == "tcp"


@pytest.mark.golden
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_caffes_recorded_run_is_met(
    golden_folder: Path, tmp_path: Path, network: Network, shape: tuple[int, ...]
) -> None:
    """Losses and weights of BVLC Caffe's run with one process and the whole batch."""
    folder, name = golden_folder / "lenet", "sgd_fixed"
    for home in homes(tmp_path, shape):
        for path in folder.iterdir():
            (home / path.name).symlink_to(path)
    (tmp_path / "lmdb").symlink_to(golden_folder / "lmdb")
    flags = ("--solver", f"{name}.solver.prototxt", "--weights", "init.caffemodel", "--exact", 4)
    out = train(network, tmp_path, shape, *flags)
    recorded = json.loads((folder / name / "result.json").read_text())
    lines = [line for line in read_metrics(out / "metrics.jsonl") if line["kind"] == "train"]
    np.testing.assert_allclose([line["loss"] for line in lines], recorded["raw_loss"], rtol=LOSS_TOLERANCE)
    (model,) = out.glob("snapshots/step_00000030/*.caffemodel")
    assert_weights_equal(model, folder / name / "snap_iter_30.caffemodel", WEIGHT_TOLERANCES[30])
