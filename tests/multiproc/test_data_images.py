"""`samovar data images` as a user runs it."""

import json
import os
from pathlib import Path

import cv2
import pytest

from tests.multiproc.command import Command, run, succeed
from tests.unit.data.pictures import picture

BAD_INPUT = 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index, name in enumerate(("roses/a.png", "roses/b.png", "tulips/c.png")):
        (tmp_path / "flowers" / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / "flowers" / name), picture(20 + index, 30, seed=index))
    return tmp_path


def test_a_database_and_its_mean(folder: Path) -> None:
    flags = (
        "--folder",
        "flowers",
        "--out",
        "data/flowers_lmdb",
        "--resize",
        "16x24",
        "--mean",
        "data/mean.binaryproto",
    )
    ended = succeed("data", "images", *flags, "--shuffle", "--seed", 2, folder=folder)
    assert ended.output.splitlines() == [
        "data/flowers_lmdb: 3 records, 3 x 16 x 24, written",
        "labels, in the order of names: 0 roses, 1 tulips",
        "data/mean.binaryproto: mean of the images, written",
    ]
    assert sorted(path.name for path in (folder / "data").iterdir()) == ["flowers_lmdb", "mean.binaryproto"]
    assert "3 x 16 x 24 uint8" in succeed("inspect", "data/flowers_lmdb", folder=folder).output
    again = succeed("data", "images", *flags, "--shuffle", "--seed", 2, "--json", folder=folder)
    assert json.loads(again.output) == {
        "databases": [{"folder": "data/flowers_lmdb", "num_records": 3, "already_there": True}],
        "mean": {"path": "data/mean.binaryproto", "already_there": True},
        "image_shape": [3, 16, 24],
        "classes": ["roses", "tulips"],
    }
    quiet = succeed(
        "data", "images", "--folder", "flowers", "--out", "data/more", "--quiet", "--resize", "8x8", folder=folder
    )
    assert (quiet.output, quiet.errors) == ("", "")


def test_a_mean_in_the_way_leaves_no_database(folder: Path) -> None:
    (folder / "mean.binaryproto").write_bytes(b"of other images")
    flags = ("--folder", "flowers", "--resize", "8x8", "--out", "data/flowers_lmdb", "--mean", "mean.binaryproto")
    ended = run("data", "images", *flags, folder=folder)
    assert ended.return_code == BAD_INPUT, ended
    assert "mean.binaryproto: exists with other content, so it is not replaced" in ended.error
    assert not list((folder / "data").glob("*"))
    assert (folder / "mean.binaryproto").read_bytes() == b"of other images"


def test_a_class_whose_name_is_not_unicode(folder: Path) -> None:
    (folder / "flowers" / "roses").rename(folder / "flowers" / os.fsdecode(b"caf\xe9"))
    strict = ("env", "PYTHONIOENCODING=utf-8:strict")
    with Command("data", "images", "--folder", "flowers", "--out", "db", folder=folder, prefix=strict) as command:
        ended = command.wait()
    assert (ended.return_code, ended.errors) == (0, "")
    assert "labels, in the order of names: 0 caf\\udce9, 1 tulips" in ended.output


@pytest.mark.parametrize("other", ["channels", "size"])
def test_images_of_different_shapes_are_told_what_a_net_needs(folder: Path, other: str) -> None:
    image = picture(20, 30)[..., 0] if other == "channels" else picture(21, 30)
    cv2.imwrite(str(folder / "flowers/roses/b.png"), image)
    (folder / "flowers/tulips/c.png").write_bytes((folder / "flowers/roses/a.png").read_bytes())
    ended = succeed("data", "images", "--folder", "flowers", "--out", "db", "--store", "files", folder=folder)
    advice = "a net needs crop_size for sizes, and force_color for channels"
    assert f"db: 3 records, images of different shapes: {advice}, written" in ended.output


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--folder", "flowers"), r"2 of 4 images cannot be used; nothing was written: flowers/roses/b.png: no whole"),
        (
            ("--list", "list.txt"),
            "list.txt: 1 of 2 images cannot be found; nothing was written: 'none.png' not found in",
        ),
        (("--folder", "flowers", "--resize", "16"), "--resize: got '16'; give HEIGHTxWIDTH, for example 256x256"),
        (("--folder", "flowers", "--list", "list.txt"), "give --list FILE (and --root FOLDER), or --folder FOLDER"),
        ((), "give --list FILE (and --root FOLDER), or --folder FOLDER"),
    ],
)
def test_what_cannot_be_used_is_named_and_leaves_nothing(folder: Path, flags: tuple[str, ...], message: str) -> None:
    for name in ("roses/b.png", "tulips/d.jpg"):
        (folder / "flowers" / name).write_bytes(b"no image")
    (folder / "list.txt").write_text("none.png 0\nflowers/roses/a.png 1\n")
    ended = run("data", "images", "--out", "data/flowers_lmdb", *flags, folder=folder)
    assert ended.return_code == BAD_INPUT, ended
    assert message in ended.error
    assert not list((folder / "data").glob("*"))
