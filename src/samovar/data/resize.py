"""Bilinear resizing as OpenCV's default does it on bytes, so that Caffe's image lists give Caffe's pixels.

A pixel i of the new image lies at (i + 1/2) * old / new - 1/2 of the old one (pixel centres; no smoothing when
shrinking) and takes its two neighbours' weights in 2048ths; at the border the nearest pixel. Where both sides
shrink to exactly half, a pixel is the rounded mean of four.

Legend: C channels, H and W the old size, h and w the new one.
"""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


Int64s = npt.NDArray[np.int64]


Int32s = npt.NDArray[np.int32]


_BITS = 11


def resized(image_CHW: Bytes, size: tuple[int, int]) -> Bytes:
    """The image, uint8 (C, H, W), at `size` = (h, w). Cost: about 10 ns a pixel of C x H x w."""
    _, height, width = image_CHW.shape
    new_height, new_width = size
    if (height, width) == size:
        return image_CHW
    if (height, width) == (2 * new_height, 2 * new_width):
        return _halved(image_CHW)
    left, right, left_weight, right_weight = _neighbours(width, new_width, whole_at_border=True)
    top, bottom, top_weight, bottom_weight = _neighbours(height, new_height, whole_at_border=False)
    rows, place = np.unique(np.concatenate([top, bottom]), return_inverse=True)
    source = image_CHW[:, rows].astype(np.int32)
    wide = (source[:, :, left] * left_weight + source[:, :, right] * right_weight) >> 4
    upper = (wide[:, place[:new_height]] * top_weight[:, None]) >> 16
    lower = (wide[:, place[new_height:]] * bottom_weight[:, None]) >> 16
    pixels: Bytes = ((upper + lower + 2) >> 2).clip(0, 255).astype(np.uint8)
    return pixels


def _neighbours(old: int, new: int, whole_at_border: bool) -> tuple[Int64s, Int64s, Int32s, Int32s]:
    """For each new pixel its two old ones, and their weights in 2048ths.

    Beyond the border both are the nearest pixel, in one part or in two (which are rounded apart, as OpenCV does
    from row to row).
    """
    centres = ((np.arange(new) + 0.5) * (1 / (new / old)) - 0.5).astype(np.float32)
    lower = np.floor(centres).astype(np.int64)
    fractions = centres - lower.astype(np.float32)
    if whole_at_border:
        fractions[(lower < 0) | (lower >= old - 1)] = 0
    scale = np.float32(1 << _BITS)
    weights = [np.rint(part * scale).astype(np.int32) for part in (np.float32(1) - fractions, fractions)]
    return lower.clip(0, old - 1), (lower + 1).clip(0, old - 1), weights[0], weights[1]


def _halved(image_CHW: Bytes) -> Bytes:
    channels, height, width = image_CHW.shape
    quads = image_CHW.reshape(channels, height // 2, 2, width // 2, 2).sum(axis=(2, 4), dtype=np.int32)
    pixels: Bytes = ((quads + 2) >> 2).astype(np.uint8)
    return pixels
