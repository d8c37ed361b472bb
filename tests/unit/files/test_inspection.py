"""`samovar inspect`: what it says of every kind of file, and how it draws nets."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import samovar
from samovar.checkpoint.store import SnapshotStore
from samovar.core.errors import InputError
from samovar.core.plain import json_document
from samovar.files.inspection import Wanted, describe, inspect
from samovar.files.inspection_runs import Description, TextTable, show
from samovar.formats.caffe.blob import encode_mean
from samovar.formats.caffe.datum import encode_datum
from samovar.formats.caffe.solverstate import SolverState, encode_solverstate, encode_solverstate_hdf5
from samovar.formats.lmdb_file import write_lmdb
from samovar.report.result import write_result
from samovar.report.run_folder import RunFolder
from tests.multiproc.command import run
from tests.unit.report import examples

NET = """
name: "branchy"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3
  stride: 2 group: 1 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "up" type: "Deconvolution" bottom: "conv" top: "up" convolution_param { num_output: 2 kernel_size: 2
  group: 2 bias_term: false } }
layer { name: "ip \\"a\\"" type: "InnerProduct" bottom: "conv" top: "a" param { name: "w" } param { name: "b" }
  inner_product_param { num_output: 5 } }
layer { name: "twin" type: "InnerProduct" bottom: "conv" top: "b" param { name: "w" } param { name: "b" }
  inner_product_param { num_output: 5 } }
layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }
layer { name: "quiet" type: "Silence" bottom: "up" }
"""
NO_FLAGS = Wanted()


@pytest.fixture
def net_path(tmp_path: Path) -> Path:
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    return path


def rows(description: Description, title: str) -> dict[object, dict[str, Any]]:
    """By the first column."""
    (table,) = [table for table in description.tables if table.title == title]
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


def test_a_net(net_path: Path) -> None:
    description = describe(net_path, NO_FLAGS)
    facts, layers = dict(description.facts), rows(description, "layers")
    assert description.kind == "net"
    assert facts["inputs"] == "data: 2 x 3 x 8 x 8"
    conv = layers["conv"]
    assert (conv["shape"], conv["parameters"]) == ("2 x 4 x 3 x 3", 4 * 3 * 9 + 4)
    assert conv["multiply-adds"] == 2 * 9 * 4 * 3 * 9
    assert layers["relu"]["tops"] == "conv (in place)"
    assert (layers["relu"]["bytes"], conv["bytes"]) == (0, 4 * 2 * 4 * 3 * 3)
    assert layers["up"]["multiply-adds"] == 2 * 4 * 3 * 3 * 1 * 2 * 2  # every input value meets one filter of 2 x 2
    ip = layers['ip "a"']
    assert (ip["parameters"], layers["twin"]["parameters"]) == (5 * 36 + 5, 0)  # shared: counted once
    assert ip["multiply-adds"] == layers["twin"]["multiply-adds"] == 2 * 5 * 36
    assert facts["parameters"] == sum(int(str(row["parameters"])) for row in layers.values())
    assert facts["multiply-adds a sample"] == sum(int(str(row["multiply-adds"])) for row in layers.values()) // 2


def test_shapes_and_phases_of_a_net(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    data = 'layer { name: "d" type: "Data" top: "data" data_param { source: "gone" batch_size: 4 backend: LMDB } }'
    path.write_text(data + 'layer { name: "relu" type: "ReLU" bottom: "data" top: "y" include { phase: TRAIN } }')
    with pytest.raises(InputError, match=r"gone.*--shape"):
        describe(path, NO_FLAGS)
    wanted = Wanted(phase="train", shapes=("data=4,3,5,6",))
    assert rows(describe(path, wanted), "layers")["relu"]["shape"] == "4 x 3 x 5 x 6"
    for flags, message in (
        (Wanted(phase="trian"), "did you mean 'TRAIN'"),
        (Wanted(shapes=("data",)), "NAME=N,C,H,W"),
        (Wanted(shapes=("data=3,x",)), "NAME=N,C,H,W"),
        (Wanted(shapes=("date=3",)), "did you mean 'data'"),
    ):
        with pytest.raises(InputError, match=message):
            describe(path, flags)


def test_a_solver(net_path: Path) -> None:
    path = net_path.with_name("solver.prototxt")
    path.write_text(
        'net: "net.prototxt" base_lr: 0.1 lr_policy: "step" gamma: 0.5 stepsize: 10 max_iter: 41 type: "Nesterov"'
    )
    description = describe(path, NO_FLAGS)
    assert dict(description.facts)["type"] == "Nesterov"
    rates = {step: row["rate"] for step, row in rows(description, "learning rate").items()}
    assert rates == pytest.approx({0: 0.1, 10: 0.05, 20: 0.025, 30: 0.0125, 40: 0.00625})


def test_a_solver_with_test_nets_states_and_weights(net_path: Path) -> None:
    path = net_path.with_name("solver.prototxt")
    path.write_text(
        'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 4 weights: "a.caffemodel, b.caffemodel" '
        'train_state { level: 1 } test_iter: 6 test_iter: 7 test_interval: 2 test_state { stage: "a" stage: "b" } '
        "test_state { level: 2 }"
    )
    facts = dict(describe(path, NO_FLAGS).facts)
    assert facts["net"] == f"{net_path}, level 1"
    assert facts["test net 0"] == f"{net_path}, stage a, stage b, test_iter 6"
    assert facts["test net 1"] == f"{net_path}, level 2, test_iter 7"
    assert facts["weights"] == "a.caffemodel, b.caffemodel"


@pytest.mark.parametrize("name", ["w.caffemodel", "w.caffemodel.h5", "w.safetensors", "w.pt"])
def test_weights(net_path: Path, name: str) -> None:
    net = samovar.caffe.load(net_path)
    with torch.no_grad():
        net.get_parameter("conv.bias").copy_(torch.tensor([1.0, 2, 3, 6]))
    path = net_path.with_name(name)
    samovar.caffe.save(net, path)
    description = describe(path, Wanted(values=True))
    (arrays,) = description.tables
    (bias,) = [row for row in arrays.rows if row[arrays.columns.index("values")] == 4]
    found = dict(zip(arrays.columns, bias, strict=True))
    assert found["shape"] == (4,)
    assert [found[column] for column in ("mean", "least", "largest", "not finite")] == [3, 1, 6, 0]


def test_tensors_of_a_safetensors_file_have_one_order(tmp_path: Path) -> None:
    names = [f"layer{index:02}.weight" for index in range(40)]
    safetensors.torch.save_file({name: torch.zeros(1) for name in names}, tmp_path / "w.safetensors")
    assert list(rows(describe(tmp_path / "w.safetensors", NO_FLAGS), "arrays")) == names


def test_values_that_are_no_numbers_are_told(tmp_path: Path) -> None:
    torch.save({"ip.bias": torch.tensor([1.0, torch.nan])}, tmp_path / "w.pt")
    assert describe(tmp_path / "w.pt", NO_FLAGS).notes == ("1 values are NaN or infinite",)
    json.loads(json_document(describe(tmp_path / "w.pt", Wanted(values=True)).as_plain()), parse_constant=pytest.fail)


@pytest.mark.parametrize("encode", [encode_solverstate, encode_solverstate_hdf5])
def test_a_solver_state(tmp_path: Path, encode: object) -> None:
    path = tmp_path / "a.solverstate"
    path.write_bytes(encode(SolverState(15, "a.caffemodel", [np.ones((2, 3), np.float32)], 1)))  # type: ignore[operator]
    description = describe(path, NO_FLAGS)
    assert dict(description.facts) | {"steps done": 15, "weights": "a.caffemodel", "values": 6} == dict(
        description.facts
    )


@pytest.mark.parametrize("name", ["mean.binaryproto", "mean.npy"])
def test_a_mean(tmp_path: Path, name: str) -> None:
    mean = np.stack([np.full((2, 2), value, np.float32) for value in (5, 7)])
    path = tmp_path / name
    if name.endswith("npy"):
        np.save(path, mean)
    else:
        path.write_bytes(encode_mean(mean))
    channels = rows(describe(path, NO_FLAGS), "channels")
    assert [channels[index]["mean"] for index in (0, 1)] == [5, 7]


def shown(description: Description, capsys: pytest.CaptureFixture[str]) -> str:
    show(description)
    return capsys.readouterr().out


def test_a_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = np.zeros((3, 4, 5), np.uint8)
    write_lmdb(tmp_path / "lmdb", [(f"{i:08}".encode(), encode_datum(image, i % 3)) for i in range(10)])
    description = describe(tmp_path / "lmdb", Wanted(num_records=7))
    facts = dict(description.facts)
    assert (facts["records"], facts["looked into"], facts["images"]) == (10, 7, "3 x 4 x 5 uint8")
    assert {label: row["records"] for label, row in rows(description, "labels").items()} == {0: 3, 1: 2, 2: 2}
    assert description.as_plain()["number of labels"] == 3
    assert "more" not in shown(description, capsys)
    write_lmdb(tmp_path / "classes", [(f"{i:08}".encode(), encode_datum(image, i)) for i in range(30)])
    many = describe(tmp_path / "classes", NO_FLAGS)
    assert len(rows(many, "labels")) == 30, "JSON has all"
    assert "  19  " in shown(many, capsys)
    assert "  20  " not in shown(many, capsys)
    assert "10 more labels" in shown(many, capsys)
    write_lmdb(tmp_path / "other", [(b"a", b"\xff\xff")])
    with pytest.raises(InputError, match=r"other.*b'a'"):
        describe(tmp_path / "other", NO_FLAGS)


def test_a_snapshot_is_held_to_its_hashes(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"weights": {"ip/0": np.ones(3, np.float32)}}
    folder = SnapshotStore(tmp_path).save(
        5, parts, {"a.caffemodel": b"x"}, {"strategy": {"name": "sync"}, "workers": 2}
    )
    description = describe(folder, NO_FLAGS)
    facts = dict(description.facts)
    assert (facts["steps done"], facts["workers"], facts["strategy"]) == (5, 2, "sync")
    assert "a.caffemodel" in rows(description, "files")
    (folder / "a.caffemodel").write_bytes(b"y")
    with pytest.raises(InputError, match="is damaged"):
        describe(folder, NO_FLAGS)


def test_a_run(tmp_path: Path) -> None:
    """The settings, the result and the snapshots of a run; one that was cut short says so."""
    folder = RunFolder(tmp_path)
    sharing = {"name": "async-easgd", "sync_period_steps": 8, "moving_rate": 0.225, "read_first": False}
    config = {
        "model": "solver.prototxt",
        "workers": 2,
        "strategy": sharing,
        "stop_rule": "mean",
        "box": "host0:4711",
        "buffer": "narrow",
        "of_a_later_version": 1,
    }
    folder.config.write_text(json.dumps(config))
    for step in (10, 5):
        SnapshotStore(folder.snapshots).save(step, {"weights": {"ip/0": np.ones(3, np.float32)}}, {}, config)
    description = describe(tmp_path, NO_FLAGS)
    assert description.facts[1:-1] == [
        *(("solver", "solver.prototxt"), ("strategy", "async-easgd"), ("sync period steps", 8), ("moving rate", 0.225)),
        *(("box", "host0:4711"), ("buffer", "narrow"), ("stop rule", "mean"), ("workers", 2)),
    ]
    assert [(row["name"], row["steps done"]) for row in rows(description, "snapshots").values()] == [
        ("step_00000005", 5),
        ("step_00000010", 10),
    ]
    assert "has not ended" in description.notes[0]
    write_result(folder.result, examples.RESULT)
    for found in (describe(tmp_path, NO_FLAGS), describe(folder.result, NO_FLAGS)):
        assert dict(found.facts)["weights sha256"] == examples.RESULT.weights_sha256
        assert not found.notes
    os.utime(folder.result, ns=(0, folder.config.stat().st_mtime_ns - 1))
    assert "of an earlier launch" in describe(tmp_path, NO_FLAGS).notes[0]
    (folder.snapshots / "step_00000005" / "manifest.json").write_text("{}")
    assert "step_00000005" in describe(tmp_path, NO_FLAGS).notes[1]
    folder.log.write_text("2026-11-24T20:00:02.000+00:00 run folder runs/a   (result.json)\n")  # which copies keep
    assert "step_00000005" in describe(tmp_path, NO_FLAGS).notes[0]
    for other in ("[]", '{"model_type": "bert"}'):
        folder.config.write_text(other)
        with pytest.raises(InputError, match="not a run's configuration"):
            describe(tmp_path, NO_FLAGS)


def test_the_result_of_workers_at_a_box(tmp_path: Path) -> None:
    """Where the center was, how it was reached, and how each worker got on."""
    result = replace(examples.RESULT, transport="tcp", box="host0:4711", buffer="narrow")
    workers = (examples.WORKER, replace(examples.WORKER, restarts=3))
    write_result(RunFolder(tmp_path).result, replace(result, by_worker=workers))
    found = describe(RunFolder(tmp_path).result, NO_FLAGS)
    facts = dict(found.facts)
    assert (facts["transport"], facts["box"], facts["buffer"]) == ("tcp", "host0:4711", "narrow")
    shown = [(row["restarts"], row["staleness"]) for row in rows(found, "workers").values()]
    assert shown == [(0, 5 / 75), (3, 5 / 75)]


def test_what_is_nothing_of_this(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    for path, message in (
        (tmp_path, "neither"),
        (tmp_path / "none", "no such file"),
        (tmp_path / "noise", "noise: is of no kind"),
    ):
        with pytest.raises(InputError, match=message):
            describe(path, NO_FLAGS)


def test_a_drawing_has_every_layer_and_blob(net_path: Path) -> None:
    target = net_path.with_name("net.dot")
    inspect(net_path, Wanted(draw=target), as_json=True)
    text = target.read_text()
    for wanted in (r"conv\nConvolution 4, 3x3 / 2\n+ ReLU relu", r"ip \"a\"\nInnerProduct 5", r"a\n2 x 5"):
        assert wanted in text
    assert text.count(" -> ") == 7
    with pytest.raises(InputError, match="exists already"):
        inspect(net_path, Wanted(draw=target), as_json=True)
    with pytest.raises(InputError, match=r"give \.dot"):
        inspect(net_path, Wanted(draw=target.with_suffix(".pdf")), as_json=True)


def test_a_net_whose_data_are_elsewhere_is_drawn_and_it_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, target = tmp_path / "net.prototxt", tmp_path / "net.dot"
    path.write_text(
        'layer { name: "d" type: "Data" top: "x" data_param { source: "gone" batch_size: 4 backend: LMDB } }'
    )
    inspect(path, Wanted(draw=target), as_json=True)
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note.startswith("drawn without shapes: ")
    assert "gone" in note
    assert "Data" in target.read_text()
    with pytest.raises(InputError, match="gone"):
        inspect(path, NO_FLAGS, as_json=True)


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz's program dot")
@pytest.mark.parametrize(("kind", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_a_picture(net_path: Path, kind: str, start: bytes) -> None:
    target = net_path.with_name(f"net.{kind}")
    inspect(net_path, Wanted(draw=target), as_json=True)
    assert target.read_bytes().startswith(start)


def test_a_picture_needs_graphviz(net_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(net_path.parent))
    with pytest.raises(InputError, match="install graphviz"):
        inspect(net_path, Wanted(draw=net_path.with_name("net.svg")), as_json=True)


def test_names_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(Description("net \x1b[2J", [("name", "[red]a\nb")], [TextTable("t", ("x",), [("\x1b]0;\x07",)])], ["\x9b31m"]))
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "\x9b" not in output
    assert r"[red]a\nb" in output


def test_the_command(net_path: Path) -> None:
    ended = run("inspect", net_path.name, "--json", folder=net_path.parent)
    assert ended.return_code == 0, ended.errors
    assert json.loads(ended.output)["layers"][1]["layer"] == "conv"
    assert "no such file" in run("inspect", "gone.caffemodel", folder=net_path.parent).error


def test_made_data_has_its_batch(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    data = 'layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 64 dim: 10 } } }'
    product = 'layer { name: "i" type: "InnerProduct" bottom: "d" top: "y" inner_product_param { num_output: 5 } }'
    path.write_text(data + product)
    facts = dict(describe(path, Wanted()).facts)
    assert facts["multiply-adds a sample"] == 50
    assert "bytes of blobs, batch 64" in facts


@pytest.mark.parametrize(("kind", "num_gates", "num_outputs"), [("RNN", 1, 1), ("LSTM", 4, 0)])
def test_a_recurrent_net_counts_sequences(tmp_path: Path, kind: str, num_gates: int, num_outputs: int) -> None:
    """10 steps of 2 sequences; the static values of each sequence count once."""
    shapes = {"x": "dim: 10 dim: 2 dim: 8", "cont": "dim: 10 dim: 2", "still": "dim: 2 dim: 1000"}
    inputs = [
        f'layer {{ type: "Input" name: "{n}" top: "{n}" input_param {{ shape {{ {s} }} }} }}' for n, s in shapes.items()
    ]
    bottoms = " ".join(f'bottom: "{name}"' for name in shapes)
    layer = f'layer {{ name: "r" type: "{kind}" {bottoms} top: "y" recurrent_param {{ num_output: 4 }} }}'
    path = tmp_path / "net.prototxt"
    path.write_text("".join([*inputs, layer]))
    description = describe(path, NO_FLAGS)
    rows_of_weights = num_gates * 4
    of_a_step = rows_of_weights * (8 + 4) + num_outputs * 4 * 4
    of_a_sequence = 10 * of_a_step + rows_of_weights * 1000
    assert rows(description, "layers")["r"]["multiply-adds"] == 2 * of_a_sequence
    facts = dict(description.facts)
    assert facts["multiply-adds a sequence"] == of_a_sequence
    assert "bytes of blobs, 2 sequences" in facts
