"""Caffe's transform_param, for a whole batch at once.

    y[c, h, w] = (x[c, h + top, w + left] - mean) * scale,   then every second y, at random, left to right

in float32, with one rounding for each of - and *, as Caffe. The mean is one value for all channels, one per
channel, or a mean image (its pixel at h + top, w + left). Without crop_size top = left = 0.

Legend: n samples, C channels, H and W height and width of a record, K crop size.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from samovar.core.errors import InputError
from samovar.data.config import DataConfig
from samovar.data.datasets import Images
from samovar.data.order import below, sample_draws
from samovar.formats.caffe.blob import read_mean

Floats: TypeAlias = npt.NDArray[np.float32]
Int64s: TypeAlias = npt.NDArray[np.int64]


class Transform:
    """The transform of one data layer for records of shape (C, H, W).

    Random crops (training only) and flips are a function of (seed, global sample counter). They are the same for
    any number of workers, and after any resume.

    Raises: InputError for means or a crop that do not fit the records.
    """

    def __init__(self, config: DataConfig, sample_shape: tuple[int, int, int], seed: int) -> None:
        asked = config.transform
        _check_crop(config.source, asked.crop_size, sample_shape)
        self._source = config.source
        self._seed = seed
        self._scale = np.float32(asked.scale)
        self._mean_CHW = _mean(config, sample_shape)
        self._crop_size = asked.crop_size
        self._mirror = asked.mirror
        self.takes_any_size = asked.crop_size > 0 and (self._mean_CHW is None or self._mean_CHW.shape[1:] == (1, 1))
        self._random_crop = asked.crop_size > 0 and config.training
        channels, height, width = sample_shape
        self.output_shape = (channels, asked.crop_size or height, asked.crop_size or width)

    def __call__(self, images_nCHW: Images, first_sample: int) -> torch.Tensor:
        """The global samples first_sample, first_sample + 1, ... as float32 (n, C, H, W) or (n, C, K, K).

        Cost: one pass to float32, one for a mean, one copy each for crop and flips."""
        draws = self._draws(first_sample, len(images_nCHW))
        images, mean = images_nCHW, self._mean_CHW
        if self._crop_size:
            _, _, height, width = images.shape
            tops, lefts = self._corners(np.full(len(images), height), np.full(len(images), width), draws)
            images = _crops(images, self._crop_size, tops, lefts)
            mean = _mean_crops(mean, self._crop_size, tops, lefts)
        return self._finished(images, mean, draws)

    def of_each(self, images: Sequence[Images], first_sample: int) -> torch.Tensor:
        """The same for images (C, H, W) of different H and W, if `takes_any_size`: float32 (n, C, K, K).
        Raises: InputError for an image smaller than the crop."""
        assert self.takes_any_size
        draws, size = self._draws(first_sample, len(images)), self._crop_size
        heights, widths = np.array([image.shape[1:] for image in images]).T if images else np.empty((2, 0), np.int64)
        if (np.minimum(heights, widths) < size).any():
            raise InputError(
                f"{self._source}: crop_size is {size}, but an image is {heights.min()} x {widths.min()} at the "
                "smallest; resize the images, or give a smaller crop_size."
            )
        tops, lefts = self._corners(heights, widths, draws)
        crops = [
            image[:, top : top + size, left : left + size] for image, top, left in zip(images, tops, lefts, strict=True)
        ]
        stacked = np.stack(crops) if crops else np.empty((0, *self.output_shape), np.uint8)
        return self._finished(stacked, self._mean_CHW, draws)

    def _finished(self, images: Images, mean: Floats | None, draws: npt.NDArray[np.uint64]) -> torch.Tensor:
        """Apply mean, scale and flips."""
        result = self._scaled(images, mean)
        if self._mirror:
            flipped = below(draws[:, 0], 2) == 1
            result[flipped] = result[flipped][..., ::-1]
        return torch.from_numpy(result)

    def _draws(self, first_sample: int, count: int) -> npt.NDArray[np.uint64]:
        if self._mirror or self._random_crop:
            return sample_draws(self._seed, first_sample, count)
        return np.empty((count, 0), np.uint64)

    def _corners(self, heights: Int64s, widths: Int64s, draws: npt.NDArray[np.uint64]) -> tuple[Int64s, Int64s]:
        """The top row and left column of each sample's crop, int64 (n,)."""
        spare_rows, spare_columns = heights - self._crop_size, widths - self._crop_size
        if self._random_crop:
            return below(draws[:, 1], spare_rows + 1), below(draws[:, 2], spare_columns + 1)
        return spare_rows // 2, spare_columns // 2

    def _scaled(self, images: Images, mean: Floats | None) -> Floats:
        if mean is None:
            return np.multiply(images, self._scale, dtype=np.float32, order="C")
        result = np.subtract(images, mean, dtype=np.float32, order="C")
        if self._scale != 1:
            result *= self._scale
        return result


def _crops(images_nCHW: Images, size: int, tops: Int64s, lefts: Int64s) -> Images:
    windows = np.lib.stride_tricks.sliding_window_view(images_nCHW, (size, size), axis=(2, 3))
    crops: Images = windows[np.arange(len(images_nCHW)), :, tops, lefts]
    return crops


def _mean_crops(mean_CHW: Floats | None, size: int, tops: Int64s, lefts: Int64s) -> Floats | None:
    """The part of a mean image under each crop (n, C, K, K), or the mean of each channel."""
    if mean_CHW is None or mean_CHW.shape[1:] == (1, 1):
        return mean_CHW
    windows = np.lib.stride_tricks.sliding_window_view(mean_CHW, (size, size), axis=(1, 2))
    return np.moveaxis(windows[:, tops, lefts], 1, 0)


def _mean(config: DataConfig, sample_shape: tuple[int, int, int]) -> Floats | None:
    """float32 (C, H, W), (C, 1, 1) or (1, 1, 1); None without a mean."""
    values, file = config.transform.mean_values, config.transform.mean_file
    if file is not None:
        return _mean_image(config.source, file, sample_shape)
    if len(values) not in {0, 1, sample_shape[0]}:
        raise InputError(
            f"{config.source}: transform_param gives {len(values)} mean_value for records of "
            f"{sample_shape[0]} channels; give one, or one per channel."
        )
    return np.array(values, np.float32).reshape(-1, 1, 1) if values else None


def _mean_image(source: Path, file: Path, sample_shape: tuple[int, int, int]) -> Floats:
    mean: Floats = read_mean(file)
    if mean.shape != sample_shape:
        raise InputError(
            f"{file}: the mean image has shape {mean.shape}, the records of {source} {sample_shape} "
            "(channels, height, width). Compute it from this database."
        )
    return mean


def _check_crop(source: Path, crop_size: int, sample_shape: tuple[int, int, int]) -> None:
    _, height, width = sample_shape
    if not 0 <= crop_size <= min(height, width):
        raise InputError(
            f"{source}: transform_param has crop_size {crop_size} for records of height {height} and width "
            f"{width}; it may be 0 (no crop) to {min(height, width)}."
        )
