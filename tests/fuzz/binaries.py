"""Mutated weights, solver states, mean images, records and IDX files."""

import gzip
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from samovar.formats.caffe.schema import message_class, packed_message_class
from tests.fuzz import material
from tests.fuzz.case import READ, REFUSED, Case, damaged, file_case

_Net, _Blob, _Datum = (message_class(name) for name in ("NetParameter", "BlobProto", "Datum"))
_LONG = "x" * 10_000_000


def weight_cases() -> Iterator[Case]:
    """Caffemodels in all their forms."""
    kind = "caffemodel"
    for name in ("caffemodel", "old_caffemodel", "caffemodel_hdf5"):
        yield file_case(kind, f"sound {name}", "w.caffemodel", getattr(material, name)(), expected=READ)
    yield from _blind(kind, "small.caffemodel", material.caffemodel(), 32, seed=10)
    yield from _blind(kind, "old.caffemodel", material.old_caffemodel(), 16, seed=11)
    yield from _blind(kind, "small.caffemodel.h5", material.caffemodel_hdf5(), 40, seed=12)
    for name, content in _bad_models().items():
        yield file_case(kind, name, "w.caffemodel", content, expected=REFUSED)
    for name, (path, value) in _HDF5_CHANGES.items():
        content = material.caffemodel_hdf5()
        yield _hdf5(kind, f"h5 {name}", content, f"data/ip{path}", value)
    yield _link(kind, "link to a device", Path("/dev/zero"))
    yield _link(kind, "link to itself", Path("w.caffemodel"))
    yield _link(kind, "link to the folder", Path())


def state_cases() -> Iterator[Case]:
    """Solver states, with sound weights beside them."""
    states = ("small.solverstate", material.solverstate()), ("small.solverstate.h5", material.solverstate_hdf5())
    cases = [file_case("solverstate", f"sound {name}", name, content, expected=READ) for name, content in states]
    cases += [case for name, content in states for case in _blind("solverstate", name, content, 24, seed=len(name))]
    for name, model in _MODEL_NAMES.items():
        cases.append(file_case("solverstate", name, "s.solverstate", material.solverstate(model), expected=REFUSED))
        if "zero" not in name:
            content = material.solverstate_hdf5(model[:60_000])
            cases.append(file_case("solverstate", f"h5 {name}", "s.solverstate", content, expected=REFUSED))
    content = material.solverstate_hdf5()
    cases += [_hdf5("solverstate", f"h5 {name}", content, f"history{p}", v) for name, (p, v) in _HDF5_CHANGES.items()]
    for case in cases:
        yield Case(case.name, case.kind, beside_weights(case), case.expected)


def mean_cases() -> Iterator[Case]:
    yield file_case("mean", "sound", "mean.binaryproto", material.mean(), expected=READ)
    yield from _blind("mean", "mean.binaryproto", material.mean(), 16, seed=20)
    for name, fields in {**_SHAPES, "one axis": {"shape": {"dim": [2]}, "data": [1.0, 2.0]}}.items():
        yield file_case("mean", name, "mean.binaryproto", _Blob(**fields).SerializeToString(), expected=REFUSED)


def datum_cases() -> Iterator[Case]:
    yield file_case("datum", "sound", "datum", material.datum(), expected=READ)
    yield from _blind("datum", "datum", material.datum(), 24, seed=21)
    for name, fields in _BAD_DATUMS.items():
        yield file_case("datum", name, "datum", _Datum(**fields).SerializeToString(), expected=REFUSED)


def idx_cases() -> Iterator[Case]:
    """Plain and packed; among them 100 MB of zeros in 100 KB, where 1 MB is expected at most."""
    for name, content in {"plain": material.idx(), **material.packed_idx()}.items():
        yield file_case("idx", f"sound {name}", "images", content, expected=READ)
    yield from _blind("idx", "images", material.idx(), 16, seed=22)
    for suffix, content in material.packed_idx().items():
        yield from _blind("idx", f"images.{suffix}", content, 8, seed=23)
    bomb = bytes(100 << 20)
    yield file_case("idx", "gzip bomb", "images.gz", gzip.compress(bomb, 9, mtime=0), expected=REFUSED)
    yield file_case("idx", "xz bomb", "images.xz", lzma.compress(bomb, preset=1), expected=REFUSED)
    header = bytes([0, 0, 8, 3])
    for name, sizes in {"huge sizes": (2**32 - 1,) * 3, "product of 2 to the 64th": (2**32 - 1, 2**32 - 1, 2)}.items():
        content = header + np.array(sizes, ">u4").tobytes() + bytes(100)
        yield file_case("idx", name, "images", content, expected=REFUSED)
    yield file_case("idx", "255 dimensions", "images", bytes([0, 0, 8, 255]) + bytes(2000), expected=REFUSED)


def _blind(kind: str, file_name: str, content: bytes, count: int, seed: int) -> Iterator[Case]:
    for name, changed in damaged(content, count, seed):
        yield file_case(kind, f"{file_name}, {name}", file_name, changed)


def _hdf5(kind: str, name: str, content: bytes, place: str, value: object) -> Case:
    """The sound file with `value` at `place`: a link, an array, or what a function makes."""

    def write(folder: Path) -> Path:
        path = folder / "changed.h5"
        path.write_bytes(content)
        with h5py.File(path, "r+") as file:
            if place in file:
                del file[place]
            if callable(value):
                value(file, place)
            else:
                file[place] = value
        return path

    return Case(f"{kind}: {name}", kind, write, expected=REFUSED)


def _link(kind: str, name: str, target: Path) -> Case:
    def write(folder: Path) -> Path:
        path = folder / "w.caffemodel"
        path.symlink_to(target if target.is_absolute() else folder / target)
        return path

    return Case(f"{kind}: {name}", kind, write, expected=REFUSED)


def beside_weights(case: Case) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "small_iter_3.caffemodel").write_bytes(material.caffemodel())
        return case.write(folder)

    return write


def _nested(depth: int) -> bytes:
    """Messages in messages: a field that is a message of NetParameter, ever again inside itself."""
    content = b""
    for _ in range(depth):
        content = b"\xa2\x06" + _varint(len(content)) + content  # field 100, a message
    return content


def _varint(value: int) -> bytes:
    digits = []
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def _groups(depth: int) -> bytes:
    """Groups, protobuf's old messages without a length, opened and never closed."""
    return b"\x0b" * depth


def _model(name: str = "ip", count: int = 1, **blob: Any) -> bytes:
    net = _Net(name="m")
    for _ in range(count):
        net.layer.add(name=name, type="InnerProduct").blobs.add(**blob)
    return bytes(net.SerializeToString())


def _bad_models() -> dict[str, bytes]:
    huge = packed_message_class("NetParameter")(name="m")
    huge.layer.add(name="ip", type="InnerProduct").blobs.add().data.append(b"\0\0\0")
    return {
        "empty": b"",
        "zeros": bytes(100_000),
        "messages 10,000 deep": _nested(10_000),
        "groups 10,000 deep": _groups(10_000),
        "a length of 2 to the 63rd": b"\xa2\x06" + b"\xff" * 8 + b"\x7f",
        "a number without an end": b"\xff" * 1000,
        "a solverstate": material.solverstate(),
        "a mean": material.mean(),
        "a database": bytes(8) + b"\xde\xc0\xef\xbe" + bytes(4084),
        "a net's text": material.NET.encode(),
        "a pickle": b"\x80\x04cposix\nsystem\n(S'touch pwned'\ntR.",
        "a zip": b"PK\x03\x04" + bytes(200),
        "three bytes of floats": bytes(huge.SerializeToString()),
        "no layer of the net": _model("other", shape={"dim": [1]}, data=[1.0]),
        "a layer name of 10 MB": _model(_LONG, shape={"dim": [1]}, data=[1.0]),
        "numbers that are none": _model(shape={"dim": [5, 64]}, data=[float("nan")] * 320),
        "a million layers of one name": _model(count=200_000, shape={"dim": [7]}, data=[1.0]),
        **{name: _model(**fields) for name, fields in _SHAPES.items()},
    }


_SHAPES: dict[str, dict[str, Any]] = {
    "negative sizes": {"shape": {"dim": [-5, -64]}, "data": [1.0] * 320},
    "one negative size": {"shape": {"dim": [-1]}, "data": [1.0]},
    "a size of 2 to the 62nd": {"shape": {"dim": [1 << 62]}, "data": [1.0]},
    "sizes whose product is 2 to the 64th": {"shape": {"dim": [1 << 32, 1 << 32]}, "data": []},
    "sizes whose product is 2 to the 64th and 1": {"shape": {"dim": [274177, 67280421310721]}, "data": [1.0]},
    "old sizes of 2 to the 31st": {"num": 2**31 - 1, "channels": 2**31 - 1, "height": 2, "width": 2, "data": [1.0]},
    "negative old sizes": {"num": -1, "channels": -1, "height": 1, "width": 1, "data": [1.0]},
    "a million axes": {"shape": {"dim": [1] * 1_000_000}, "data": [1.0]},
    "33 axes": {"shape": {"dim": [1] * 33}, "data": [1.0]},
    "floats and doubles": {"shape": {"dim": [1]}, "data": [1.0], "double_data": [1.0]},
    "fewer numbers than its shape": {"shape": {"dim": [5, 64]}, "data": [1.0] * 319},
    "numbers without a shape": {"data": [1.0] * 3},
}
_MODEL_NAMES = {
    "weights at the root": "/",
    "weights that are a device": "/dev/zero",
    "weights out of the folder": "../../../../../../../../etc/passwd",
    "weights that are not there": "nowhere.caffemodel",
    "weights of a name of 10 MB": _LONG,
    "weights with a zero byte": "small\0.caffemodel",
    "weights with line ends": "a\nb\r\x1b[2Jc",
    "weights without a name": "",
}


def _external(file: h5py.File, place: str) -> None:
    file.create_dataset(place, (100,), "f4", external="/etc/passwd")


def _virtual(file: h5py.File, place: str) -> None:
    layout = h5py.VirtualLayout((3,), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (3,))
    file.create_virtual_dataset(place, layout)


def _endless(file: h5py.File, place: str) -> None:
    file.create_dataset(place, (1 << 50,), "f4", chunks=(1 << 20,))


def _zeros_packed(file: h5py.File, place: str) -> None:
    file.create_dataset(place, data=np.zeros(50_000_000, np.float32), chunks=(1 << 20,), compression="gzip")


def _circle(file: h5py.File, place: str) -> None:
    file[place] = file["/"]


def _deep(file: h5py.File, place: str) -> None:
    file.create_group(place + "/x" * 2000)


def _many(file: h5py.File, place: str) -> None:
    group = file.create_group(place)
    for index in range(1000):
        group.create_group(f"{index}/x")


# At the first array of the layer, or of the history.
_HDF5_CHANGES: dict[str, tuple[str, object]] = {
    "link into the file": ("/0", h5py.SoftLink("/data/conv/0")),
    "link out of the file": ("/0", h5py.ExternalLink("/etc/passwd", "/")),
    "group in another file": ("", h5py.ExternalLink("../../other.h5", "/data")),
    "numbers in another file": ("/0", _external),
    "virtual array": ("/0", _virtual),
    "array without an end": ("/0", _endless),
    "200 MB of packed zeros": ("/0", _zeros_packed),
    "text": ("/0", "words"),
    "texts": ("/0", np.array([b"a", b"b"])),
    "records": ("/0", np.zeros(3, [("a", "f4"), ("b", "i8")])),
    "complex numbers": ("/0", np.zeros(320, np.complex64)),
    "no value": ("/0", h5py.Empty("f4")),
    "circle": ("", _circle),
    "groups 2,000 deep": ("", _deep),
    "group for an array": ("/0", _many),
    "numbers with a gap": ("/7", np.zeros(3, np.float32)),
    "array 10 to the 18th": ("/999999999999999999", np.zeros(3, np.float32)),
    "of another length": ("/0", np.zeros(7, np.float32)),
}
_BAD_DATUMS: dict[str, dict[str, Any]] = {
    "empty": {},
    "sizes of 2 to the 93rd": {"channels": 2**31 - 1, "height": 2**31 - 1, "width": 2**31 - 1, "data": b"a"},
    "negative sizes": {"channels": -1, "height": -1, "width": 1, "data": b"a"},
    "sizes of 2 to the 64th and 1": {"channels": 1 << 22, "height": 1 << 21, "width": 1 << 21, "data": b"a"},
    "fewer bytes": {"channels": 3, "height": 8, "width": 8, "data": bytes(191)},
    "more bytes": {"channels": 3, "height": 8, "width": 8, "data": bytes(193)},
    "bytes and floats": {"channels": 1, "height": 1, "width": 1, "data": b"a", "float_data": [1.0]},
    "floats of another number": {"channels": 1, "height": 1, "width": 2, "float_data": [1.0]},
    "encoded nothing": {"encoded": True},
    "encoded words": {"encoded": True, "data": b"this is no image at all"},
}
