"""Mutated data sets, each behind a net whose data layer names it: LMDBs, their records, images, lists, HDF5 files."""

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from samovar.formats.caffe.schema import message_class
from tests.fuzz import material
from tests.fuzz.case import READ, REFUSED, Case, damaged

Prepare = Callable[[Path], object]  # makes what the net names, in its folder
_Datum = message_class("Datum")
_LONG = "x" * 3_000_000
_IMAGE_KINDS = ("png", "jpeg", "bmp", "ppm")

LMDB_NET = material.DATA_NET.replace("SOURCE", "images_lmdb")
_HEAD, _, _TAIL = material.DATA_NET.partition("  transform_param")
_TAIL = _TAIL[_TAIL.index("layer {") :]
_LIST = (
    ('{head}  image_data_param {{ source: "list.txt" batch_size: 4 {more} }} }}\n' + "{tail}")
    .replace("{head}", _HEAD.replace('"Data"', '"ImageData"').replace("{", "{{").replace("}", "}}"))
    .replace("{tail}", _TAIL.replace("{", "{{").replace("}", "}}"))
)
_WINDOWS = (
    _HEAD.replace('"Data"', '"WindowData"')
    + "  transform_param { crop_size: 4 } window_data_param"
    + ' { source: "list.txt" batch_size: 4 context_pad: 1 fg_fraction: 1 } }\n'
    + _TAIL
)
_WINDOW_FILE = b"# 0\ngood.png\n3 8 8\n2\n1 1 0 0 5 5\n2 0.9 2 2 5 7\n# 1\ngood.png\n3 8 8\n1\n3 1 1 1 4 4\n"
_BAD_WINDOWS = {
    "image elsewhere": (b"good.png", b"../../etc/passwd"),
    "image by a link": (b"good.png", b"out.png"),
    "endless image": (b"good.png", b"zero.png"),
    "pipe": (b"good.png", b"pipe.png"),
    "many windows": (b"\n2\n", b"\n16777215\n"),
    "windows beyond numbers": (b"\n2\n", b"\n99999999999999999999\n"),
    "window beyond the image": (b"1 1 0 0 5 5", b"1 1 0 0 5 5000000"),
    "not a number": (b"1 1 0 0 5 5", b"1 nan 0 0 5 5"),
    "infinite class": (b"1 1 0 0 5 5", b"inf 1 0 0 5 5"),
    "digits of other scripts": (b"3 8 8", "3 \u0668 8".encode()),
}
_HDF5 = _HEAD.replace('"Data"', '"HDF5Data"') + '  hdf5_data_param { source: "list.txt" batch_size: 4 } }\n' + _TAIL


def data_cases() -> Iterator[Case]:
    """All kinds of sources."""
    yield _case("sound lmdb", LMDB_NET, _sound_database, expected=READ)
    yield _case("sound images", _LIST.format(more=""), partial(_with_list, content=b"good.png 0\n"), expected=READ)
    yield _case("sound windows", _WINDOWS, partial(_with_list, content=_WINDOW_FILE), expected=READ)
    yield _case("sound hdf5", _HDF5, _with_rows, expected=READ)
    for kind in _IMAGE_KINDS:
        yield _case(f"sound {kind}", LMDB_NET, partial(_with_image, content=_compressed(kind)), expected=READ)
    yield from _databases()
    yield from _records()
    yield from _images()
    yield from _image_lists()
    yield from _hdf5_files()
    for name, (old, new) in _BAD_SETTINGS.items():
        assert old in LMDB_NET, old
        yield _case(f"layer, {name}", LMDB_NET.replace(old, new), _sound_database, expected=REFUSED)


def _case(name: str, net: str, prepare: Prepare, expected: str = "") -> Case:
    def write(folder: Path) -> Path:
        path = folder / "net.prototxt"
        path.write_text(net)
        prepare(folder)
        return path

    return Case(f"data: {name}", "data", write, expected)


def _sound_database(folder: Path) -> Path:
    return material.write_database(folder / "images_lmdb")


def _databases() -> Iterator[Case]:
    """The file of a sound database, damaged when it is written: blindly, and at each number of its meta pages."""

    def change(folder: Path, way: Callable[[bytes], bytes]) -> None:
        path = _sound_database(folder) / "data.mdb"
        path.write_bytes(way(path.read_bytes()))

    for index in range(48):
        yield _case(f"lmdb, blind {index}", LMDB_NET, partial(change, way=partial(_one_damaged, index=index)))
    for page in (0, 4096):
        for offset in (16, 20, 40, 64, 66, 68, 88, 104, 120, 128):
            for number in (0, 2**32 - 1, 2**63 + 7):
                way = partial(_put, offset=page + offset, number=number)
                yield _case(f"lmdb, {number} at {page + offset}", LMDB_NET, partial(change, way=way))
    for name, prepare in _STRANGE_DATABASES.items():
        yield _case(f"lmdb, {name}", LMDB_NET, prepare, expected=REFUSED)


def _one_damaged(content: bytes, index: int) -> bytes:
    return list(damaged(content, index + 1, seed=30))[index][1]


def _put(content: bytes, offset: int, number: int) -> bytes:
    return content[:offset] + struct.pack("<Q", number) + content[offset + 8 :]


def _records() -> Iterator[Case]:
    for name, record in damaged(material.datum(), 16, seed=31):
        yield _case(f"record, {name}", LMDB_NET, partial(_with_record, record=record))
    of_another_size = _Datum(channels=3, height=5, width=8, data=bytes(120)).SerializeToString()
    for name, record in {"smaller than the crop": of_another_size, "empty": b"", "10 MB": bytes(10_000_000)}.items():
        yield _case(f"record, {name}", LMDB_NET, partial(_with_record, record=record), expected=REFUSED)


def _with_record(folder: Path, record: bytes) -> None:
    """The third of six records is this one."""
    records = [material.datum(index) for index in range(6)]
    records[2] = record
    material.write_database(folder / "images_lmdb", records)


def _images() -> Iterator[Case]:
    """Compressed images, in records and as files."""
    for kind in _IMAGE_KINDS:
        for name, content in damaged(_compressed(kind), 16, seed=32):
            yield _case(f"{kind} record, {name}", LMDB_NET, partial(_with_image, content=content))
    packed = _png_declaring(8, 8, zlib.compress(bytes(100 << 20)))
    yield _case("image record, 100 MB of packed zeros", LMDB_NET, partial(_with_image, content=packed))
    for name, content in _bad_images().items():
        yield _case(f"image record, {name}", LMDB_NET, partial(_with_image, content=content), expected=REFUSED)
        prepare = partial(_with_files, content=content)
        yield _case(f"image file, {name}", _LIST.format(more=""), prepare, expected=REFUSED)


def _compressed(kind: str) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.moveaxis(material.image(), 0, 2)).save(content, kind)
    return content.getvalue()


def _with_image(folder: Path, content: bytes) -> None:
    good = _Datum(encoded=True, data=_compressed("png"), label=1).SerializeToString()
    bad = _Datum(encoded=True, data=content, label=2).SerializeToString()
    material.write_database(folder / "images_lmdb", [good, bad, good])


def _with_files(folder: Path, content: bytes) -> None:
    (folder / "good.png").write_bytes(_compressed("png"))
    (folder / "bad.png").write_bytes(content)
    (folder / "list.txt").write_text("good.png 0\nbad.png 1\n")


def _bad_images() -> dict[str, bytes]:
    png = _compressed("png")
    return {
        "empty": b"",
        "words": b"no image",
        "100,000 x 100,000": _png_declaring(100_000, 100_000),
        "2 to the 31st square": _png_declaring(2**31 - 1, 2**31 - 1),
        "width 0": _png_declaring(0, 8),
        "a packed remark of 100 MB": png[:33] + _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(100 << 20))) + png[33:],
        "bmp of negative sizes": _compressed("bmp")[:18] + struct.pack("<ii", -8, -(2**31)) + _compressed("bmp")[26:],
        "ppm of huge sizes": b"P6 99999999 99999999 255\n" + bytes(100),
        "ppm of negative sizes": b"P6 -8 -8 255\n" + bytes(192),
        "a script": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(/tmp/pwned) (w) file\n",
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "gif": _compressed("gif"),
        "tiff": _compressed("tiff"),
        "webp of no content": b"RIFF\xff\xff\xff\xffWEBPVP8 " + bytes(50),
    }


def _png_declaring(width: int, height: int, packed: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", packed or zlib.compress(bytes(100)))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _image_lists() -> Iterator[Case]:
    plain = _LIST.format(more="")
    for name, content in damaged(b"".join(b"good.png %d\n" % index for index in range(8)), 16, seed=33):
        yield _case(f"image list, {name}", plain, partial(_with_list, content=content))
    for name, content in damaged(_WINDOW_FILE, 16, seed=34):
        yield _case(f"window file, {name}", _WINDOWS, partial(_with_list, content=content))
    for name, (old, new) in _BAD_WINDOWS.items():
        assert old in _WINDOW_FILE, old
        content = _WINDOW_FILE.replace(old, new)
        yield _case(f"window file, {name}", _WINDOWS, partial(_with_list, content=content), expected=REFUSED)
    for name, text in _BAD_LISTS.items():
        yield _case(f"image list, {name}", plain, partial(_with_list, content=text.encode()), expected=REFUSED)
    for name, more in _BAD_LIST_SETTINGS.items():
        prepare = partial(_with_list, content=b"good.png 0\n")
        yield _case(f"image list, {name}", _LIST.format(more=more), prepare, expected=REFUSED)


def _with_list(folder: Path, content: bytes) -> None:
    (folder / "good.png").write_bytes(_compressed("png"))
    (folder / "list.txt").write_bytes(content)
    (folder / "out.png").symlink_to("/etc/passwd")
    (folder / "zero.png").symlink_to("/dev/zero")
    (folder / "circle.png").symlink_to("circle.png")
    (folder / "folder.png").mkdir()
    os.mkfifo(folder / "pipe.png")


def _hdf5_files() -> Iterator[Case]:
    for index in range(40):
        yield _case(f"hdf5, blind {index}", _HDF5, partial(_with_damaged_rows, index=index))
    for name, change in _HDF5_CHANGES.items():
        yield _case(f"hdf5, {name}", _HDF5, partial(_with_rows, change=change), expected=REFUSED)
    for name, text in _BAD_HDF5_LISTS.items():
        yield _case(f"hdf5 list, {name}", _HDF5, partial(_with_rows, listed=text), expected=REFUSED)


def _with_rows(folder: Path, change: Callable[[h5py.File], object] | None = None, listed: str = "rows.h5\n") -> None:
    with h5py.File(folder / "rows.h5", "w") as file:
        file["data"] = np.arange(9 * 12, dtype=np.float32).reshape(9, 3, 2, 2)
        file["label"] = np.arange(9, dtype=np.float32) % 5
        if change is not None:
            change(file)
    (folder / "list.txt").write_text(listed)


def _with_damaged_rows(folder: Path, index: int) -> None:
    _with_rows(folder)
    path = folder / "rows.h5"
    path.write_bytes(_one_damaged(path.read_bytes(), index))


def _set(value: object, name: str = "data") -> Callable[[h5py.File], object]:
    def change(file: h5py.File) -> None:
        del file[name]
        if value is not None:
            file[name] = value

    return change


def _virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((9, 2), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (9, 2))
    del file["data"]
    file.create_virtual_dataset("data", layout)


def _external(file: h5py.File) -> None:
    del file["data"]
    file.create_dataset("data", (9, 2), "f4", external="/etc/passwd")


def _huge(file: h5py.File) -> None:
    del file["data"]
    file.create_dataset("data", (9, 1 << 40), "f4", chunks=(1, 1 << 20))


_HDF5_CHANGES: dict[str, Callable[[h5py.File], object]] = {
    "no data": _set(None),
    "link out of the file": _set(h5py.ExternalLink("/etc/passwd", "/")),
    "link into the file": _set(h5py.SoftLink("/label")),
    "virtual data": _virtual,
    "data in another file": _external,
    "rows without an end": _huge,
    "text": _set("words"),
    "one number": _set(np.float32(1)),
    "no rows": _set(np.zeros((0, 3), np.float32)),
    "fewer rows than labels": _set(np.zeros((8, 3), np.float32)),
    "rows of nothing": _set(np.zeros((9, 0), np.float32)),
    "a group": lambda file: (_set(None)(file), file.create_group("data")),
    "complex numbers": _set(np.zeros((9, 3), np.complex64)),
}
_BAD_HDF5_LISTS = {
    "empty": "",
    "blank lines": "\n \n\t\n",
    "a file that is not there": "rows.h5\nnowhere.h5\n",
    "a file of the system": "/etc/passwd\n",
    "a device": "/dev/zero\n",
    "the list itself": "list.txt\n",
    "10 MB in a line": _LONG,
    "a zero byte": "rows\0.h5\n",
}
_BAD_LISTS = {
    "empty": "",
    "blank lines": "\n \n\t\n",
    "no label": "good.png\n",
    "only a label": " 7\n",
    "a label that is no number": "good.png seven\n",
    "a label beyond 32 bits": "good.png 2147483648\n",
    "a label of 10 MB": "good.png " + "9" * 10_000_000,
    "a line of 10 MB": _LONG + " 1\n",
    "a zero byte": "good\0.png 1\n",
    "escapes": "good.png 0\n\x1b[2J\rTraceback.png 1\n",
    "a file out of the folder": "good.png 0\n../../../../../../../../etc/passwd 1\n",
    "a file at the root": "good.png 0\n/etc/passwd 1\n",
    "a link out of the folder": "good.png 0\nout.png 1\n",
    "a link to a device": "good.png 0\nzero.png 1\n",
    "a link to itself": "good.png 0\ncircle.png 1\n",
    "a folder": "good.png 0\nfolder.png 1\n",
    "a pipe": "good.png 0\npipe.png 1\n",
    "a file that is not there": "good.png 0\nnowhere.png 1\n",
}
_BAD_LIST_SETTINGS = {
    "a height of 4 thousand million": "new_height: 4294967295 new_width: 4294967295",
    "a height of 100,000": "new_height: 100000 new_width: 100000",
    "no width": "new_height: 8",
    "root out of the folder": 'root_folder: "/proc"',
    "root that is not there": 'root_folder: "../nowhere"',
    "batches of 4 thousand million": "batch_size: 4294967295",
}
_BAD_LIST_SETTINGS["batches of 4 thousand million"] = "rand_skip: 1 } image_data_param { batch_size: 4294967295"
_STRANGE_DATABASES: dict[str, Prepare] = {
    "no folder": lambda _folder: None,
    "an empty folder": lambda folder: (folder / "images_lmdb").mkdir(),
    "a file": lambda folder: (folder / "images_lmdb").write_bytes(b"x"),
    "a link to a device": lambda folder: ((folder / "images_lmdb").mkdir(), _data_link(folder, "/dev/zero")),
    "a link to itself": lambda folder: (folder / "images_lmdb").symlink_to("images_lmdb"),
    "no records": lambda folder: material.write_database(folder / "images_lmdb", []),
    "a pipe": lambda folder: ((folder / "images_lmdb").mkdir(), os.mkfifo(folder / "images_lmdb/data.mdb")),
    "a file of holes": lambda folder: _holes(folder / "images_lmdb"),
}


def _data_link(folder: Path, target: str) -> None:
    (folder / "images_lmdb/data.mdb").symlink_to(target)


def _holes(folder: Path) -> None:
    """1 TB, of which nothing is stored."""
    folder.mkdir()
    with (folder / "data.mdb").open("wb") as file:
        file.truncate(1 << 40)


_BAD_SETTINGS = {
    "no source": ("images_lmdb", ""),
    "source of 10 MB": ("images_lmdb", _LONG),
    "source with a zero byte": ("images_lmdb", r"images\000lmdb"),
    "source that is a file of the system": ("images_lmdb", "/etc/passwd"),
    "batches of 4 thousand million": ("batch_size: 4", "batch_size: 4294967295"),
    "batches of none": ("batch_size: 4", "batch_size: 0"),
    "crop beyond the image": ("crop_size: 6", "crop_size: 4294967295"),
    "scale that is no number": ("scale: 0.00390625", "scale: nan"),
    "mean that is no number": ("scale: 0.00390625", "mean_value: inf"),
    "four means for three channels": ("mirror: true", "mean_value: [1, 2, 3, 4]"),
    "a million means": ("mirror: true", "mean_value: 1 " * 1_000_000),
    "mean file of the system": ("mirror: true", 'mean_file: "/etc/passwd"'),
    "mean file that is a device": ("mirror: true", 'mean_file: "/dev/zero"'),
    "LevelDB": ("backend: LMDB", "backend: LEVELDB"),
    "a million tops": ('top: "label"', " ".join(f'top: "t{i}"' for i in range(200_000))),
}
