"""Windows of images: which are drawn, and what is cut, stretched and padded; OpenCV is the reference."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.data.config import TransformConfig, WindowDataConfig
from samovar.data.reader import BatchReader
from samovar.data.windows import Cut, WindowSource, cut_of
from samovar.formats.caffe.blob import write_mean
from tests.unit.data.pictures import encoded, picture

SIZE = 12
WINDOWS = """# 0
a.png
3 40 60
3
5 0.9 4 6 23 30
2 0.3 10 2 30 38
7 0.5 50 20 59 39

# 1
b.png
3
33
21
2
1 0.45 0 0 20 32
0 0.1 3 4 9 30
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WindowDataConfig:
    """Two images; windows of classes 5 and 7, three of background: one of them would be of a class."""
    monkeypatch.chdir(tmp_path)
    for name, shape in (("a.png", (40, 60)), ("b.png", (33, 21))):
        (tmp_path / name).write_bytes(encoded(picture(*shape, seed=len(name) + shape[0]), "PNG"))
    (tmp_path / "windows.txt").write_text(WINDOWS)
    transform = TransformConfig(crop_size=SIZE)
    return WindowDataConfig(tmp_path / "windows.txt", 8, ("data", "label"), transform, True)


def stretched(name: str, x1: int, y1: int, x2: int, y2: int, size: tuple[int, int] = (SIZE, SIZE)) -> np.ndarray:
    """(3, height, width) of `size` = (width, height)."""
    image = cv2.imread(name)
    return np.moveaxis(cv2.resize(image[y1 : y2 + 1, x1 : x2 + 1], size), 2, 0).astype(np.float32)


OBJECTS = {5: ("a.png", 4, 6, 23, 30), 7: ("a.png", 50, 20, 59, 39)}
BACKGROUND = [("a.png", 10, 2, 30, 38), ("b.png", 0, 0, 20, 32), ("b.png", 3, 4, 9, 30)]


def test_a_batch_is_background_and_then_objects(config: WindowDataConfig) -> None:
    with BatchReader([config], True, seed=3) as reader:
        assert reader.top_shapes == {"data": (8, 3, SIZE, SIZE), "label": (8,)}
        assert len(reader) == 5
        batches = [reader.read(start, 8) for start in range(0, 400, 8)]
        parts = [reader.read(start, 2) for start in range(8, 16, 2)]
    seen: set[int] = set()
    for batch in batches:
        assert batch["label"][:6].tolist() == [0] * 6
        for place in range(8):
            label = int(batch["label"][place])
            wanted = [stretched(*OBJECTS[label])] if place >= 6 else [stretched(*window) for window in BACKGROUND]
            matching = [k for k, image in enumerate(wanted) if np.array_equal(image, batch["data"][place].numpy())]
            assert len(matching) == 1
            seen.add(label or -matching[0])
    assert seen == {5, 7, 0, -1, -2}
    for tensor, key in ((batches[1]["data"], "data"), (batches[1]["label"], "label")):
        assert np.array_equal(np.concatenate([part[key].numpy() for part in parts]), tensor.numpy())


def test_mirrored_and_less_its_mean(config: WindowDataConfig, tmp_path: Path) -> None:
    """The middle of a larger mean image; the scale is the layer's own."""
    mean = np.random.default_rng(1).uniform(0, 255, (3, SIZE + 5, SIZE + 5)).astype(np.float32)
    write_mean(tmp_path / "mean.binaryproto", mean)
    middle = mean[:, 2 : 2 + SIZE, 2 : 2 + SIZE]
    transform = TransformConfig(crop_size=SIZE, mirror=True, mean_file=tmp_path / "mean.binaryproto", scale=9)
    config = replace(config, transform=transform, scale=0.25, fg_fraction=1.0)
    with BatchReader([config], True, seed=1) as reader:
        batch = reader.read(0, 64)
    kinds = []
    for image, label in zip(batch["data"].numpy(), batch["label"].tolist(), strict=True):
        plain = stretched(*OBJECTS[label])
        found = [np.array_equal((pixels - middle) * np.float32(0.25), image) for pixels in (plain, plain[..., ::-1])]
        assert sum(found) == 1
        kinds.append(found[1])
    assert 16 < sum(kinds) < 48


@pytest.mark.parametrize(
    ("corners", "is_square", "expected"),
    [
        # Half sizes 10 and 10 grow by 12 / 8 to 15 around 30: 15 .. 45 are 31 pixels.
        ((20, 20, 39, 39), False, Cut(15, 15, 45, 45, 12, 12)),
        # 4 x 8 pixels, square: half 4 grows to 6 around 22 and 24.
        ((20, 20, 23, 27), True, Cut(16, 18, 28, 30, 12, 12)),
        # Around 5 and 55 by 7.5: -3 (-2.5, away from zero) .. 13 and 48 .. 63; of 17 and 16 pixels 14 and 12 are there.
        ((0, 50, 9, 59), False, Cut(0, 48, 13, 59, 10, 9, 2, 0, 0)),
        # Around 54 and 43: 47 .. 62, of which 13 pixels are there, and 36 .. 51.
        ((49, 38, 58, 47), False, Cut(47, 36, 59, 51, 10, 12, 0, 2, 0)),
    ],
    ids=["inside", "square", "left", "right"],
)
def test_context(corners: tuple[int, ...], is_square: bool, expected: Cut, config: WindowDataConfig) -> None:
    config = replace(config, context_pad=2, is_square=is_square)
    assert cut_of(list(corners), (60, 60), config) == expected


def test_what_lies_outside_of_the_image_is_zero(config: WindowDataConfig, tmp_path: Path) -> None:
    (tmp_path / "windows.txt").write_text("# 0\na.png\n3 40 60\n1\n4 1 0 20 9 29\n")
    transform = TransformConfig(crop_size=SIZE, mean_values=(10.0, 20.0, 30.0))
    config = replace(config, transform=transform, fg_fraction=1.0, context_pad=2)
    with BatchReader([config], True) as reader:
        image = reader.read(0, 1)["data"][0].numpy()
    inside = stretched("a.png", 0, 18, 13, 33, (10, 12)) - np.array([10, 20, 30], np.float32).reshape(3, 1, 1)
    np.testing.assert_array_equal(image[:, :, 2:], inside)
    assert not image[:, :, :2].any()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# 1", "# 2", r"windows.txt:9: should begin image '# 1'"),
        ("3 40 60", "1 40 60", r"windows.txt:3: 1 channels; windows are cut out of colour images"),
        ("3 40 60\n3", "3 40 60\n4", r"windows.txt:9: should be class overlap x1 y1 x2 y2"),
        ("5 0.9 4 6 23 30", "5 0.9 4 6 60 30", r"windows.txt:5: window 0 of the 3 .*: 5 0.9 4 6 60 30; .* x2 < 60"),
        ("5 0.9 4 6 23 30", "5 nan 4 6 23 30", r"window 0 of the 3 from here on: 5 nan"),
        ("5 0.9 4 6 23 30", "5 0.9 4.5 6 23 30", r"window 0 of the 3 from here on: 5 0.9 4.5"),
        ("5 0.9 4 6 23 30", "dog 0.9 4 6 23 30", r"windows.txt:5: the 3 windows from here on: .*'dog'"),
        ("5 0.9 4 6 23 30", "0 0.9 4 6 23 30", "with an overlap of fg_threshold or more has a class below 1"),
        ("a.png", "../a.png", "image 0: '../a.png' not found in"),
        ("3 40 60", "3 40 99999999", r"should be the number of width, less than 16,777,216"),
        ("3 40 60", "3 -4 60", r"should be the number of height"),
        (WINDOWS, "", "lists no image"),
        ("0.9", "0.4", "has no window of objects, of which a batch takes 2"),
    ],
)
def test_refused(config: WindowDataConfig, tmp_path: Path, old: str, new: str, message: str) -> None:
    text = WINDOWS.replace("7 0.5", "7 0.4") if new == "0.4" else WINDOWS
    (tmp_path / "windows.txt").write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        WindowSource(config, 0)


def test_an_image_that_is_smaller_than_its_file_says(config: WindowDataConfig, tmp_path: Path) -> None:
    (tmp_path / "windows.txt").write_text("# 0\na.png\n3 99 99\n1\n4 1 0 20 70 29\n")
    source = WindowSource(replace(config, fg_fraction=1.0), 0)
    with pytest.raises(InputError, match=r"image 0: 'a.png' is 60 x 40, and a window ends at \(70, 29\)"):
        source.read(0, 1)
    with pytest.raises(InputError, match="cannot be held in memory"):
        source.records()


def test_a_mirrored_window_fits_behind_its_margin(config: WindowDataConfig, tmp_path: Path) -> None:
    """Of 423 + 26 columns both parts round up: 212 + 13 of 224."""
    cv2.imwrite("big.png", np.random.default_rng(0).integers(0, 255, (375, 500, 3), np.uint8))
    (tmp_path / "windows.txt").write_text("# 0\nbig.png\n3 375 500\n1\n4 1 109 233 491 369\n")
    transform = TransformConfig(crop_size=224, mirror=True)
    source = WindowSource(replace(config, transform=transform, fg_fraction=1.0, context_pad=16), 0)
    plain = stretched("big.png", 77, 222, 499, 374, (212, 214))
    turned = stretched("big.png", 77, 222, 499, 374, (211, 214))[..., ::-1]
    kinds = set()
    for image in source.read(0, 16)["data"].numpy():
        is_turned = bool(image[:, :214, -1].any())
        wanted, place = (turned, np.s_[:, :214, 13:]) if is_turned else (plain, np.s_[:, :214, :212])
        np.testing.assert_array_equal(image[place], wanted)
        kinds.add(is_turned)
    assert kinds == {True, False}
