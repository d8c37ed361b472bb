"""Weights, solver states and mean images: written, read, and refused where damaged."""

from pathlib import Path

import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.formats.caffe.blob import read_mean
from samovar.formats.caffe.caffemodel import LayerRecord, encode_caffemodel, read_caffemodel
from samovar.formats.caffe.schema import message_class
from samovar.formats.caffe.solverstate import SolverState, encode_solverstate, read_solverstate

Net = message_class("NetParameter")


@pytest.fixture
def records(rng: np.random.Generator) -> list[LayerRecord]:
    def array(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    return [
        LayerRecord("data", "Data", (), ("data", "label"), ()),
        LayerRecord("conv/a", "Convolution", ("data",), ("c",), (array(4, 2, 3, 3), array(4))),
        LayerRecord("ip", "InnerProduct", ("c",), ("y",), (array(5, 7), array(5))),
    ]


def test_round_trip(tmp_path: Path, records: list[LayerRecord]) -> None:
    path = tmp_path / "w.caffemodel"
    path.write_bytes(encode_caffemodel("lenet", records))

    weights = read_caffemodel(path)

    assert list(weights) == ["conv/a", "ip"]
    for record in records[1:]:
        for ours, theirs in zip(weights[record.name], record.blobs, strict=True):
            np.testing.assert_array_equal(ours, theirs)
            assert ours.dtype == np.float32
            assert ours.flags.c_contiguous


def test_what_caffe_sees(records: list[LayerRecord]) -> None:
    net = Net.FromString(encode_caffemodel("lenet", records))

    assert net.name == "lenet"
    assert [(layer.name, layer.type) for layer in net.layer][:2] == [("data", "Data"), ("conv/a", "Convolution")]
    assert list(net.layer[0].top) == ["data", "label"]
    blob = net.layer[1].blobs[0]
    assert list(blob.shape.dim) == [4, 2, 3, 3]
    np.testing.assert_array_equal(np.array(blob.data, np.float32), records[1].blobs[0].ravel())


def test_strided_arrays_are_written_in_logical_order(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4, 1).transpose(0, 3, 1, 2)
    path = tmp_path / "w.caffemodel"
    path.write_bytes(encode_caffemodel("n", [LayerRecord("c", "Convolution", (), (), [array])]))

    np.testing.assert_array_equal(read_caffemodel(path)["c"][0], array)


def test_a_cut_file_is_refused_or_holds_whole_layers(tmp_path: Path, records: list[LayerRecord]) -> None:
    content = encode_caffemodel("lenet", records)
    path = tmp_path / "w.caffemodel"
    messages = []
    for size in range(len(content)):
        path.write_bytes(content[:size])
        try:
            weights = read_caffemodel(path)
        except InputError as error:
            messages.append(str(error))
        else:
            assert [len(blobs) for blobs in weights.values()] == [2] * len(weights)
    assert len(messages) >= len(content) - len(records)
    assert all(message.startswith(f"{path}: ") for message in messages)


def test_old_layers_and_shapes(tmp_path: Path) -> None:
    net = Net()
    v1 = net.layers.add(name="c1", type=4)
    v1.blobs.add(num=2, channels=1, height=1, width=2, data=[1, 2, 3, 4])
    v0 = net.layers.add()
    v0.layer.name = "f1"
    v0.layer.blobs.add(num=1, channels=1, height=1, width=3, double_data=[1, 2, 3])
    new = net.layer.add(name="f2")
    new.blobs.add(data=[0.5])
    path = tmp_path / "old.caffemodel"
    path.write_bytes(net.SerializeToString())

    weights = read_caffemodel(path)

    assert {name: [b.shape for b in blobs] for name, blobs in weights.items()} == {
        "c1": [(2, 1, 1, 2)],
        "f1": [(1, 1, 1, 3)],
        "f2": [()],
    }
    np.testing.assert_array_equal(weights["f1"][0].ravel(), [1, 2, 3])


def test_floats_written_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "w.caffemodel"
    unpacked_blob = bytes.fromhex("3a030a0102" + "2d0000803f" + "2d000000c0")  # shape 2, data 1.0, data -2.0
    layer = b"\x0a\x01x" + b"\x3a" + bytes([len(unpacked_blob)]) + unpacked_blob
    path.write_bytes(b"\xa2\x06" + bytes([len(layer)]) + layer)

    np.testing.assert_array_equal(read_caffemodel(path)["x"][0], [1.0, -2.0])


BAD_BLOBS = [
    ({"shape": {"dim": [2, 3]}, "data": [1.0]}, r"has shape \(2, 3\), which is 6 values, but holds 1"),
    ({"shape": {"dim": [1 << 40, 1 << 40]}, "data": [1.0]}, "1208925819614629174706176 values, but holds 1"),
    ({"shape": {"dim": [0, 1 << 62, 1 << 62]}}, "no array can have"),
    ({"shape": {"dim": [-1, -1]}, "data": [1.0]}, "none negative"),
    ({"shape": {"dim": [1] * 33}, "data": [1.0]}, "at most 32 axes"),
    ({"shape": {"dim": [1]}, "data": [1.0], "double_data": [1.0]}, "both float and double"),
]


@pytest.mark.parametrize(("blob", "message"), BAD_BLOBS)
def test_damaged_blobs(tmp_path: Path, blob: dict[str, object], message: str) -> None:
    net = Net()
    net.layer.add(name="c").blobs.add(**blob)
    path = tmp_path / "w.caffemodel"
    path.write_bytes(net.SerializeToString())

    with pytest.raises(InputError, match=f"{path.name}: layer 'c', blob 0: .*{message}"):
        read_caffemodel(path)


def test_more_than_two_gigabytes_are_refused() -> None:
    array = np.broadcast_to(np.float32(0), (600_000_000,))

    with pytest.raises(InputError, match="2 GB"):
        encode_caffemodel("big", [LayerRecord("x", "InnerProduct", (), (), [array])])
    with pytest.raises(InputError, match=r"2 GB; .*snapshot_format: HDF5"):
        encode_solverstate(SolverState(1, "big_iter_1.caffemodel", [array]))


def test_solverstate_round_trip(tmp_path: Path, rng: np.random.Generator) -> None:
    history = [rng.standard_normal((2, 3)).astype(np.float32), np.zeros(3, np.float32)]
    path = tmp_path / "s.solverstate"
    path.write_bytes(encode_solverstate(SolverState(15, "s_iter_15.caffemodel", history, 2)))

    state = read_solverstate(path)

    assert (state.iteration, state.learned_net, state.current_step) == (15, "s_iter_15.caffemodel", 2)
    for ours, theirs in zip(state.history, history, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_files_of_another_kind(tmp_path: Path, records: list[LayerRecord]) -> None:
    state = encode_solverstate(SolverState(1, "x.caffemodel", [np.ones(3, np.float32)]))
    mean = message_class("BlobProto")(num=1, channels=1, height=2, width=2, data=[1, 2, 3, 4])
    kinds = {
        "caffemodel": (encode_caffemodel("n", records), read_caffemodel),
        "solverstate": (state, read_solverstate),
        "binaryproto": (mean.SerializeToString(), read_mean),
        "prototxt": (b'name: "lenet"\nlayer { name: "x" }\n', None),
        "garbage": (bytes(range(256)), None),
        "empty": (b"", None),
    }
    for kind, (content, _) in kinds.items():
        path = tmp_path / f"file.{kind}"
        path.write_bytes(content)
        for reader_kind, (_, reader) in kinds.items():
            if reader is None:
                continue
            if reader_kind == kind:
                reader(path)
            else:
                with pytest.raises(InputError, match=f"file.{kind}: "):
                    reader(path)


def test_mean_image(tmp_path: Path) -> None:
    path = tmp_path / "mean.binaryproto"
    path.write_bytes(
        message_class("BlobProto")(num=1, channels=3, height=1, width=2, data=range(6)).SerializeToString()
    )

    mean = read_mean(path)

    assert mean.shape == (3, 1, 2)
    np.testing.assert_array_equal(mean.ravel(), range(6))
