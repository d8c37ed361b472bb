"""Every recorded layer case that ONNX can say: exported and run by onnxruntime, it gives what BVLC Caffe gave."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samovar.core.errors import InputError
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.layers.registry import SUPPORTED
from samovar.frontends.caffe.module import Net
from samovar.frontends.caffe.net import build_net
from samovar.frontends.caffe.onnx_export import encode_onnx
from tests.parity.onnx_runtime import run_onnx

pytestmark = pytest.mark.golden

NUM_EXPORTED = 185
REFUSED = {
    *("Accuracy", "BatchReindex", "Filter", "Im2col", "LSTM", "RNN", "SPP"),
    *("ContrastiveLoss", "EuclideanLoss", "HingeLoss", "InfogainLoss", "MultinomialLogisticLoss"),
    *("SigmoidCrossEntropyLoss", "SoftmaxWithLoss"),
}


def test_exported_layers_give_what_caffe_gave(golden_folder: Path) -> None:
    folder = golden_folder / "layers"
    cases = json.loads((folder / "index.json").read_text())["cases"]
    outcome = Counter(_outcome(folder, case) for case in cases if set(case["types"]) <= set(SUPPORTED))
    assert outcome["as Caffe"] == NUM_EXPORTED
    assert sum(outcome.values()) - NUM_EXPORTED == sum(outcome[kind] for kind in ("refused", "in training", "setting"))


def _outcome(folder: Path, case: dict[str, Any]) -> str:
    with np.load(folder / f"{case['name']}.npz") as arrays:
        recorded = dict(arrays)
    caffe_net = build_net(load_net(folder / f"{case['name']}.prototxt"), case["phase"], {}, seed=0)
    for info in caffe_net.parameter_infos:
        info.parameter.data.copy_(torch.from_numpy(recorded[f"param/{info.name}"]))
    inputs = {name: recorded[f"input/{name}"] for name in caffe_net.input_names}
    net = Net(caffe_net, {name: array.shape for name, array in inputs.items()}, case["phase"])
    try:
        content = encode_onnx(net)
    except InputError as error:
        return _kind_of_refusal(str(error), case)
    for name, found in run_onnx(content, inputs).items():
        expected = recorded[f"output/{name}"]
        assert found.shape == expected.shape, case["name"]
        limit = case["tolerance"] * max(1e-3, np.abs(expected).max())
        assert np.abs(found - expected).max() <= limit, case["name"]
    return "as Caffe"


def _kind_of_refusal(message: str, case: dict[str, Any]) -> str:
    if "works as in training" in message:
        assert {"BatchNorm", "Dropout"} & set(case["types"]), message
        return "in training"
    if "cannot be exported to ONNX; give a net without it" in message:
        assert REFUSED & set(case["types"]), message
        return "refused"
    assert case["name"] in ("conv_axis2", "pool_max_with_mask"), message
    return "setting"
