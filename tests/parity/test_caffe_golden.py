"""Layers, fillers, files and refusals against what BVLC Caffe recorded (see the recordings' README.md)."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf.unknown_fields import UnknownFieldSet

from samovar.core.errors import InputError
from samovar.data.reader import BatchReader
from samovar.formats.caffe.blob import read_mean
from samovar.formats.caffe.caffemodel import read_caffemodel
from samovar.formats.caffe.schema import Message, message_class
from samovar.formats.caffe.solverstate import encode_solverstate, read_solverstate
from samovar.formats.caffe.text import read_text
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.layers.registry import DATA_TYPES, SUPPORTED
from samovar.frontends.caffe.net import CaffeNet, build_net
from samovar.frontends.caffe.solver import load_solver
from samovar.frontends.caffe.upgrade import layers_of
from samovar.frontends.caffe.weights import match_weights

pytestmark = pytest.mark.golden

SYNTAX_ERRORS = {"truncated_prototxt", "unknown_field", "unknown_solver_field"}
NUM_LAYER_CASES = 258
NUM_REFUSED = 62


def layer_cases(golden_folder: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((golden_folder / "layers/index.json").read_text())["cases"]
    return [case for case in cases if set(case["types"]) <= set(SUPPORTED)]


class LayerRun:
    """One recorded case run by our net: forward, then backward from the recorded gradients of its outputs."""

    def __init__(self, folder: Path, case: Mapping[str, Any], channels_last: bool) -> None:
        with np.load(folder / f"{case['name']}.npz") as arrays:
            self.arrays = dict(arrays)
        self.net = build_net(load_net(folder / f"{case['name']}.prototxt"), case["phase"], {}, seed=0)
        self.tops: dict[str, torch.Tensor] = {}
        self.results: dict[str, torch.Tensor] = {}
        for info in self.net.parameter_infos:
            info.parameter.data.copy_(torch.from_numpy(self.arrays[f"param/{info.name}"]))
        for index in range(len(self.net.layers)):
            self._keep_tops(index)
        for turn in range(case["passes"]):
            self._pass("" if turn == 0 else f"@{turn}", channels_last, case["backward"])

    def _pass(self, suffix: str, channels_last: bool, backward: bool) -> None:
        batch = {name: self._input(name, suffix, channels_last) for name in self.net.input_names}
        self.net.zero_grad()
        loss = self.net(batch).loss
        if backward:
            self._backward(loss, suffix)
        found = {f"output/{name}": value.detach() for name, value in (batch | self.tops).items()}
        found |= {f"bottom_diff/{name}": _gradient(value) for name, value in batch.items()}
        for info in self.net.parameter_infos:
            found[f"param_diff/{info.name}"] = _gradient(info.parameter)
            found[f"param_after/{info.name}"] = info.parameter.detach().clone()
        self.results |= {key + suffix: value for key, value in found.items()}

    def _input(self, name: str, suffix: str, channels_last: bool) -> torch.Tensor:
        value = torch.from_numpy(self.arrays[f"input/{name}{suffix}"])
        if channels_last and value.dim() == 4:
            value = value.contiguous(memory_format=torch.channels_last)
        return value.requires_grad_(f"bottom_diff/{name}{suffix}" in self.arrays)

    def _keep_tops(self, index: int) -> None:
        layer, names = self.net.layers[index], self.net.layers[index].spec.tops
        layer.register_forward_hook(lambda _layer, _inputs, tops: self.tops.update(zip(names, tops, strict=True)))

    def _backward(self, loss: torch.Tensor | None, suffix: str) -> None:
        terms = [] if loss is None else [loss]
        for key in self.arrays:
            kind, _, rest = key.partition("/")
            name, _, turn = rest.partition("@")
            if kind == "top_diff" and turn == suffix[1:] and self.tops[name].requires_grad:  # an index has no gradient
                terms.append((self.tops[name] * torch.from_numpy(self.arrays[key])).sum())
        torch.autograd.backward(torch.stack(terms).sum())


def _gradient(value: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(value) if value.grad is None else value.grad.clone()


@pytest.mark.parametrize("channels_last", [False, True])
def test_every_case_of_the_supported_layers(golden_folder: Path, channels_last: bool) -> None:
    cases = layer_cases(golden_folder)
    wrong = []
    for case in cases:
        run = LayerRun(golden_folder / "layers", case, channels_last)
        kinds = ("output", "bottom_diff", "param_diff", "param_after")
        expected = [key for key in run.arrays if key.split("/")[0] in kinds]
        if case["name"] == "shared_weights":  # autograd gives the sum over both layers, recorded as ip1's
            expected = [key for key in expected if not key.startswith("param_diff/ip2")]
        if case["name"] == "dropout_train":  # its own draws: see the test below
            continue
        for key in expected:
            recorded = run.arrays[key]
            ours = run.results[key].numpy()
            difference = np.abs(ours - recorded).max() if ours.shape == recorded.shape else math.inf
            if not difference <= case["tolerance"] * max(1e-3, np.abs(recorded).max()):
                wrong.append(f"{case['name']} {key}: {difference}")
    assert not wrong
    assert len(cases) == NUM_LAYER_CASES


def test_dropout_scales_what_it_keeps(golden_folder: Path) -> None:
    (case,) = [case for case in layer_cases(golden_folder) if case["name"] == "dropout_train"]
    run = LayerRun(golden_folder / "layers", case, channels_last=False)

    for values, gradients in (
        (run.arrays["output/out"], run.arrays["bottom_diff/data"]),
        (run.results["output/out"].numpy(), run.results["bottom_diff/data"].numpy()),
    ):
        kept = values != 0
        np.testing.assert_allclose(values, kept * run.arrays["input/data"] / 0.7, rtol=1e-6)
        np.testing.assert_allclose(gradients, kept * run.arrays["top_diff/out"] / 0.7, rtol=1e-6)
        assert 0.55 < kept.mean() < 0.85


def test_fillers(golden_folder: Path) -> None:
    recorded = json.loads((golden_folder / "fillers/statistics.json").read_text())
    net = build_net(load_net(golden_folder / "fillers/net.prototxt"), "TRAIN", {}, seed=1)
    wrong = [
        problem
        for info in net.parameter_infos
        for problem in _differences(info.layer, info.parameter.detach().numpy(), recorded[info.layer])
    ]
    assert not wrong
    assert {info.layer for info in net.parameter_infos} == set(recorded)


def _differences(layer: str, values: np.ndarray, recorded: Mapping[str, Any]) -> list[str]:
    """Statistics further from the recorded ones than two samples of this size differ by chance."""
    std, size = recorded["std"], values.size
    width = recorded["max"] - recorded["min"]
    found = {
        "mean": (values.mean(), 6 * std / math.sqrt(size)),
        "std": (values.std(), max(0.03 * std, 1e-7)),
        "min": (values.min(), 0.2 * width),
        "max": (values.max(), 0.2 * width),
    }
    if "nonzero_fraction" in recorded:
        found["nonzero_fraction"] = ((values != 0).mean(), 0.01)
        found["std"] = (values.std(), 0.05 * std)
    wrong = [
        f"{layer} {name}: {value} is not {recorded[name]}"
        for name, (value, allowed) in found.items()
        if abs(value - recorded[name]) > allowed + 1e-7
    ]
    return wrong + ([] if list(values.shape) == recorded["shape"] else [f"{layer}: shape {values.shape}"])


def _refusal(golden_folder: Path, case: Mapping[str, Any]) -> str:
    """Our message for a case, or an empty string where nothing was wrong."""
    path = golden_folder / "refused" / case["file"]
    try:
        if case["kind"] == "solver":
            load_solver(path)
            return ""
        definition = load_net(path)
        if any(spec.type in DATA_TYPES for spec in definition.layers):
            BatchReader(definition.data_layers("TEST"), training=False)
        else:
            build_net(definition, "TRAIN", {}, seed=0)
    except InputError as error:
        return str(error)
    return ""


def test_what_caffe_refuses_is_refused_at_its_place(golden_folder: Path) -> None:
    cases = json.loads((golden_folder / "refused/refused.json").read_text())
    messages = {name: _refusal(golden_folder, case) for name, case in cases.items()}

    accepted = [name for name, case in cases.items() if case["refused"] and not messages[name]]
    assert not accepted
    assert len(messages) == NUM_REFUSED
    unplaced = [name for name, message in messages.items() if cases[name]["file"] not in message]
    assert set(unplaced) <= {"crop_bigger_than_image", "wrong_number_of_means"}  # known only from the database
    assert all(message.isprintable() and len(message) > 40 for message in messages.values())
    assert not [name for name, message in messages.items() if "is not supported yet" in message]


OLD_NETS = (
    "batchnorm_params",
    "data_transform_fields",
    "input_dims",
    "input_shapes",
    "v0_all_types",
    "v0_net",
    "v1_all_types",
    "v1_net",
)


@pytest.mark.parametrize("name", OLD_NETS)
def test_old_nets_become_what_caffes_upgrade_makes_of_them(golden_folder: Path, name: str) -> None:
    old, new = (
        read_text(golden_folder / "old-formats" / f"{name}{kind}.prototxt", "NetParameter")
        for kind in ("", ".upgraded")
    )

    assert [layer for layer, _ in layers_of(old)] == list(new.message.layer)


def test_a_net_and_weights_of_2014(golden_folder: Path) -> None:
    """Caffe's own test result of them, over five batches."""
    folder = golden_folder / "old-formats"
    definition = load_net(folder / "v1_net.prototxt")
    with BatchReader(definition.data_layers("TEST"), training=False) as reader:
        shapes = reader.top_shapes
        net = build_net(definition, "TEST", shapes, seed=0)
        path = folder / "v1_weights.caffemodel"
        matched = match_weights(net, read_caffemodel(path), path)
        for info in net.parameter_infos:
            info.parameter.data.copy_(torch.from_numpy(matched.arrays[info.name]))
        outputs = [net(reader.read(16 * batch, 16)).scalars for batch in range(5)]

    recorded = json.loads((folder / "result.json").read_text())["caffe_test_5_iterations_with_v1_weights"]
    for name, value in recorded.items():
        assert np.mean([float(output[name]) for output in outputs]) == pytest.approx(value, rel=2e-6)


def test_every_text_file_can_be_read(golden_folder: Path) -> None:
    paths = sorted(golden_folder.rglob("*.prototxt"))
    for path in paths:
        name = "SolverParameter" if "solver" in path.name else "NetParameter"
        if path.name.partition(".")[0] in SYNTAX_ERRORS:
            continue
        parsed = read_text(path, name)
        _assert_places(parsed.message, parsed.places.fields)
    assert len(paths) > 350


def _assert_places(message: Message, places: Mapping[str, list[Any]]) -> None:
    """Every field that was read has its place."""
    for field, value in message.ListFields():
        values = list(value) if field.is_repeated else [value]
        assert len(places[field.name]) == len(values), field.full_name
        if field.message_type is not None:
            for inner, place in zip(values, places[field.name], strict=True):
                _assert_places(inner, place.fields)


def test_every_binary_file_can_be_read(golden_folder: Path) -> None:
    models, states = sorted(golden_folder.rglob("*.caffemodel")), sorted(golden_folder.rglob("*.solverstate"))
    for path in models:
        content = path.read_bytes()
        net = message_class("NetParameter").FromString(content)
        _assert_all_fields_known(net)
        assert len(net.SerializeToString()) == len(content)
        blobs = {layer.name: layer.blobs for layer in (*net.layer, *net.layers) if layer.blobs}
        for name, arrays in read_caffemodel(path).items():
            for array, blob in zip(arrays, blobs.pop(name), strict=True):
                np.testing.assert_array_equal(array.ravel(), np.array(blob.data or blob.double_data, np.float32))
        assert not blobs
    for path in states:
        assert encode_solverstate(read_solverstate(path)) == path.read_bytes()
    assert len(models) > 50
    assert len(states) > 10
    assert read_mean(golden_folder / "cifar/mean.binaryproto").shape == (3, 32, 32)


def _assert_all_fields_known(message: Message) -> None:
    assert len(UnknownFieldSet(message)) == 0, message.DESCRIPTOR.full_name
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                _assert_all_fields_known(inner)


def test_nets_of_the_training_runs(golden_folder: Path) -> None:
    definition = load_net(golden_folder / "lenet/net.prototxt")
    [config] = definition.data_layers("TRAIN")
    net: CaffeNet = build_net(definition, "TRAIN", {"data": (32, 1, 28, 28), "label": (32,)}, seed=1)

    recorded = read_caffemodel(golden_folder / "lenet/init.caffemodel")
    assert config.source.resolve() == (golden_folder / "lmdb/mnist_train").resolve()
    assert {info.name: list(info.parameter.shape) for info in net.parameter_infos} == {
        f"{layer}/{index}": list(array.shape)
        for layer, arrays in recorded.items()
        for index, array in enumerate(arrays)
    }
