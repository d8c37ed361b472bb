"""transform_param against its definition, pixel by pixel."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samovar.core.errors import InputError
from samovar.data.config import DataConfig, TransformConfig
from samovar.data.order import below, sample_draws
from samovar.data.transform import Transform
from samovar.formats.caffe.schema import message_class

SHAPE = (3, 7, 6)
SEED = 11
PLAIN = DataConfig(Path("images_lmdb"), 8, ("data", "label"), TransformConfig(), training=True)
Floats = npt.NDArray[np.float32]


def config(training: bool = True, **transform: Any) -> DataConfig:
    return replace(PLAIN, training=training, transform=TransformConfig(**transform))


def random_images(count: int, dtype: type = np.uint8) -> npt.NDArray[np.uint8 | np.float32]:
    return np.random.default_rng(0).integers(0, 256, (count, *SHAPE)).astype(dtype)


def mean_image() -> Floats:
    return np.random.default_rng(1).uniform(90, 160, SHAPE).astype(np.float32)


def write_mean(path: Path, mean_CHW: Floats) -> Path:
    channels, height, width = mean_CHW.shape
    blob = message_class("BlobProto")(num=1, channels=channels, height=height, width=width)
    blob.data.extend(mean_CHW.ravel().tolist())
    path.write_bytes(blob.SerializeToString())
    return path


def by_definition(
    images: npt.NDArray[np.uint8 | np.float32], first_sample: int, asked: DataConfig, mean_CHW: Floats
) -> Floats:
    """Caffe's loop over pixels; draws of a sample: flip, top, left."""
    transform = asked.transform
    _, height, width = SHAPE
    size = transform.crop_size
    out_height, out_width = (size, size) if size else (height, width)
    result = np.empty((len(images), SHAPE[0], out_height, out_width), np.float32)
    for n, image in enumerate(images):
        draws = sample_draws(SEED, first_sample + n, 1)[0]
        flip = transform.mirror and below(draws[:1], 2)[0] == 1
        top, left = (height - out_height) // 2, (width - out_width) // 2
        if size and asked.training:
            top, left = below(draws[1:2], height - size + 1)[0], below(draws[2:3], width - size + 1)[0]
        for c, h, w in np.ndindex(SHAPE[0], out_height, out_width):
            pixel = np.float32(image[c, top + h, left + w]) - mean_CHW[c, top + h, left + w]
            result[n, c, h, out_width - 1 - w if flip else w] = pixel * np.float32(transform.scale)
    return result


@pytest.mark.parametrize("phase", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("crop_size", [0, 1, 4, 6])
@pytest.mark.parametrize("mean", ["none", "one", "channels", "file"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_equals_the_definition(
    tmp_path: Path, phase: tuple[bool, bool], crop_size: int, mean: str, dtype: type
) -> None:
    training, mirror = phase
    values = {"one": (117.3,), "channels": (104.1, 117.0, 123.7)}.get(mean, ())
    full_mean = np.broadcast_to(np.array(values or (0.0,), np.float32).reshape(-1, 1, 1), SHAPE)
    file = None
    if mean == "file":
        full_mean = mean_image()
        file = write_mean(tmp_path / "mean.binaryproto", full_mean)
    asked = config(training, scale=0.017, mirror=mirror, crop_size=crop_size, mean_values=values, mean_file=file)
    images = random_images(9, dtype)
    transform = Transform(asked, SHAPE, SEED)
    found = transform(images, 100)
    np.testing.assert_array_equal(found.numpy(), by_definition(images, 100, asked, full_mean))
    assert found.is_contiguous()
    assert tuple(found.shape[1:]) == transform.output_shape


@given(cut=st.integers(0, 12), first_sample=st.integers(0, 10**15))
def test_a_sample_is_the_same_in_any_slice(cut: int, first_sample: int) -> None:
    transform = Transform(config(crop_size=4, mirror=True), SHAPE, SEED)
    images = random_images(12)
    parts = [transform(images[:cut], first_sample), transform(images[cut:], first_sample + cut)]
    np.testing.assert_array_equal(np.concatenate(parts), transform(images, first_sample))


def test_random_crops_and_flips_take_every_place_evenly() -> None:
    height, width, size = 5, 4, 3
    positions = np.arange(height * width, dtype=np.uint8).reshape(1, height, width)
    count = 6000
    transform = Transform(config(crop_size=size, mirror=True), (1, height, width), SEED)
    crops = transform(np.broadcast_to(positions, (count, 1, height, width)), 0).numpy()
    flipped = crops[:, 0, 0, 0] > crops[:, 0, 0, 1]
    corners = np.where(flipped, crops[:, 0, 0, size - 1], crops[:, 0, 0, 0])
    places, counts = np.unique(corners * 2 + flipped, return_counts=True)
    assert len(places) == 3 * 2 * 2
    assert np.all(abs(counts - count / 12) < 5 * np.sqrt(count / 12))


def test_another_seed_gives_other_flips() -> None:
    images = random_images(64)
    one, two = (Transform(config(mirror=True), SHAPE, seed)(images, 0) for seed in (1, 2))
    assert not torch.equal(one, two)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ({"mean_values": (1.0, 2.0)}, "gives 2 mean_value for records of 3 channels; give one, or one per"),
        ({"mean_values": (1.0,) * 4}, "gives 4 mean_value"),
        ({"crop_size": 7}, "crop_size 7 for records of height 7 and width 6; it may be 0 .* to 6"),
        ({"crop_size": -1}, "crop_size -1"),
        ({"mean_file": Path("nowhere.binaryproto")}, "nowhere.binaryproto"),
    ],
)
def test_what_does_not_fit_is_refused(transform: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Transform(config(**transform), SHAPE, SEED)


def test_a_mean_image_of_another_shape_is_refused(tmp_path: Path) -> None:
    file = write_mean(tmp_path / "mean.binaryproto", mean_image()[:, :-1])
    with pytest.raises(InputError, match=r"mean image has shape \(3, 6, 6\), the records .* \(3, 7, 6\)"):
        Transform(config(mean_file=file), SHAPE, SEED)
