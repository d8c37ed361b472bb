"""A test pass of several workers, also of a net whose layers carry states from batch to batch."""

import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from samovar.data.reader import BatchReader
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.net import CaffeNet, build_net
from samovar.training.evaluation import Evaluation
from samovar.transports.shm import ShmTransport
from tests.threads import on_threads

NUM_BATCHES, STEPS = 3, 4
NET = """
layer {{ name: "rows" type: "HDF5Data" top: "x" top: "cont" hdf5_data_param {{ source: "{list}" batch_size: 4 }} }}
layer {{ name: "l" type: "LSTM" bottom: "x" bottom: "cont" top: "y" recurrent_param {{ num_output: 3
  weight_filler {{ type: "uniform" min: -1 max: 1 }} }} }}
layer {{ name: "sum" type: "Reduction" bottom: "y" top: "sum" }}
"""


@pytest.fixture
def prototxt(tmp_path: Path) -> Path:
    """One sequence of 12 steps that goes on from batch to batch."""
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"] = np.random.default_rng(5).standard_normal((NUM_BATCHES * STEPS, 1, 2)).astype(np.float32)
        file["cont"] = np.ones((NUM_BATCHES * STEPS, 1), np.float32)
    (tmp_path / "list.txt").write_text("rows.h5\n")
    net = tmp_path / "net.prototxt"
    net.write_text(NET.format(list=tmp_path / "list.txt"))
    return net


def results(
    prototxt: Path,
    transport: ShmTransport,
    count: int,
    num_batches: int = NUM_BATCHES,
    timeout_s: float = 30.0,
    pauses_s: tuple[float, ...] = (0.0, 0.0),
) -> list[float]:
    """The means of `count` passes; each batch takes this rank's time of `pauses_s` longer."""
    pause_s = pauses_s[transport.group.rank]
    definition = load_net(prototxt)
    with BatchReader(definition.data_layers("TEST"), training=False) as reader:
        net = build_net(definition, "TEST", reader.top_shapes, seed=1)
        net.register_forward_pre_hook(lambda *_: time.sleep(pause_s))
        evaluation = Evaluation(net, reader, num_batches, transport, timeout_s)
        return [evaluation.run().outputs["sum"] for _ in range(count)]


def in_one_piece(prototxt: Path) -> CaffeNet:
    return build_net(load_net(prototxt), "TEST", {"x": (NUM_BATCHES * STEPS, 1, 2), "cont": (12, 1)}, seed=1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sequence_goes_on_from_batch_to_batch_and_every_test_begins_anew(prototxt: Path, workers: int) -> None:
    found = on_threads(workers, lambda transport: results(prototxt, transport, 2))

    with h5py.File(prototxt.parent / "rows.h5") as file:
        batch = {name: torch.from_numpy(file[name][()]) for name in ("x", "cont")}
    whole = float(in_one_piece(prototxt)(batch).scalars["sum"])
    means = [mean for of_rank in found for mean in of_rank]
    np.testing.assert_allclose(means, whole / NUM_BATCHES, rtol=1e-5)


@pytest.mark.parametrize("carries", [True, False])
def test_others_wait_for_a_slow_worker_whose_batches_come_in_time(prototxt: Path, carries: bool) -> None:
    """Its share of 16 batches, or all of them, takes longer than the timeout."""
    if not carries:
        rows = prototxt.read_text().strip().splitlines()[0]
        prototxt.write_text(rows + 'layer { name: "sum" type: "Reduction" bottom: "x" top: "sum" }')
    times: dict[str, Any] = {"num_batches": 16, "timeout_s": 2.0, "pauses_s": (0.14 if carries else 0.28, 0.0)}
    first, second = on_threads(2, lambda transport: results(prototxt, transport, 1, **times))
    assert first == second


def test_a_test_leaves_running_statistics_as_they_were(prototxt: Path) -> None:
    """With `use_global_stats: false` forward changes them in phase TEST, too; a run must not depend on its tests."""
    rows = prototxt.read_text().strip().splitlines()[0]
    norm = 'layer { name: "n" type: "BatchNorm" bottom: "x" top: "n" batch_norm_param { use_global_stats: false } }'
    prototxt.write_text(f'{rows} {norm} layer {{ name: "sum" type: "Reduction" bottom: "n" top: "sum" }}')

    def statistics(transport: ShmTransport) -> list[float]:
        definition = load_net(prototxt)
        with BatchReader(definition.data_layers("TEST"), training=False) as reader:
            net = build_net(definition, "TEST", reader.top_shapes, seed=1)
            Evaluation(net, reader, NUM_BATCHES, transport, 30.0).run()
            return [float(info.parameter.abs().sum()) for info in net.parameter_infos]

    assert on_threads(1, statistics) == [[0.0, 0.0, 0.0]]
