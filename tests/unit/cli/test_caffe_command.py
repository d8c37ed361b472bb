"""What `samovar caffe` says before a job starts."""

import io
from pathlib import Path

import pytest

from samovar.cli.caffe_command import CaffeFlags, _introduce
from samovar.frontends.caffe.solver import load_solver
from samovar.report.caffe_log import CaffeLog

NET = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 } } }'
SOURCES = {
    'net: "net.prototxt"': "from net file: net.prototxt",
    'train_net: "net.prototxt"': "from train_net file: net.prototxt",
    f"net_param {{ {NET} }}": "specified in net_param.",
    f"train_net_param {{ {NET} }}": "specified in train_net_param.",
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_training_net_has_its_place_in_caffes_words(source: str, tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    path = tmp_path / "solver.prototxt"
    path.write_text(f'{source} base_lr: 0.1 lr_policy: "fixed" max_iter: 1 snapshot_prefix: "net"')
    stream = io.StringIO()

    _introduce(CaffeFlags("train"), load_solver(path), CaffeLog(stream, "train"))

    assert f"] Creating training net {SOURCES[source]}\n" in stream.getvalue()
