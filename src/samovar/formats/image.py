"""Compressed images (JPEG, PNG, BMP, PPM) as Caffe sees them: uint8 (channels, height, width), blue first; resized.

Caffe reads them with OpenCV. Pixels are turned by a camera's note (EXIF) unless read as stored, and alpha is left out.
16-bit samples are cut to their high byte, and grey is 0.299 R + 0.587 G + 0.114 B. Here Pillow decodes these formats.

Resizing is bilinear, as OpenCV's default on bytes. Pixel i of the new image is at (i + 1/2) * old / new - 1/2 of the
old one (pixel centres; no smoothing when shrinking). It takes its two neighbours by weights in 2048ths, at the border
the nearest pixel. If both sides shrink to exactly half, a pixel is the rounded mean of four.
"""

import io
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from samovar.core.errors import InputError
from samovar.core.files import read_file

Channels: TypeAlias = Literal["color", "gray", "stored"]
Pixels: TypeAlias = npt.NDArray[np.uint8]

FORMATS = ("JPEG", "PNG", "BMP", "PPM")
MAX_PIXELS = 64 << 20
MAX_FILE_BYTES = 256 << 20
_Weights: TypeAlias = tuple[int, int, int, int, int]
_WEIGHTS = (4899, 9617, 1868, 1 << 13, 14)  # of red, green, blue, what is added, and the bits; OpenCV's own
_PNG_WEIGHTS = (9797, 19234, 3737, 0, 15)  # OpenCV leaves these files to libpng
_STORED_MODES = {"1": "L", "L": "L", "LA": "RGBA", "PA": "RGBA", "RGBA": "RGBA"}


def decode_image(content: bytes, channels: Channels) -> Pixels:
    """The pixels (C, H, W): 3 channels blue, green, red ("color"), 1 ("gray"), or as many as it has ("stored").

    Cost: one decoding; at most 67 million pixels.
    Raises: InputError if it is not such an image, is cut short or damaged, or has more pixels.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                size = f"{image.width} x {image.height}"
                raise InputError(f"the image is {size}; at most {MAX_PIXELS:,} pixels are decoded")
            pixels = _pixels(image, channels)
    except InputError:
        raise
    except Exception as error:  # of damaged files Pillow's decoders raise nearly any kind
        raise InputError(_why(content, error)) from error
    return np.ascontiguousarray(pixels)


def read_image(path: Path, channels: Channels) -> Pixels:
    """As `decode_image`, of a regular file; InputError, naming it, if it cannot be read."""
    content = read_file(path, "image", MAX_FILE_BYTES)
    try:
        return decode_image(content, channels)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _pixels(image: Image.Image, channels: Channels) -> Pixels:
    if channels == "stored":
        return _as_stored(image)
    if channels == "gray" and image.format in ("JPEG", "MPO"):  # a JPEG with more pictures behind it
        image.draft("L", image.size)  # the file's own brightness, as OpenCV takes it
    weights = _PNG_WEIGHTS if image.format == "PNG" else _WEIGHTS
    upright = ImageOps.exif_transpose(_eight_bits(image))
    if channels == "gray":
        return _gray(upright, weights)[None]
    return _blue_first(_rgb(upright))


def _as_stored(image: Image.Image) -> Pixels:
    if image.mode.startswith(("I", "F")):
        raise InputError(f"the image has samples of more than 8 bits (mode {image.mode}); write it with 8 bits")
    mode = _STORED_MODES.get(image.mode, "RGBA" if "transparency" in image.info else "RGB")
    pixels = image.convert(mode)
    return np.asarray(pixels)[None] if mode == "L" else _blue_first(pixels)


def _eight_bits(image: Image.Image) -> Image.Image:
    """The image, its samples of 16 bits cut to the high byte."""
    if not image.mode.startswith("I"):
        return image
    high = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
    cut = Image.fromarray(high)
    cut.info = image.info
    return cut


def _rgb(image: Image.Image) -> Image.Image:
    """Without alpha and palette, the colours under transparent pixels as they are."""
    return (image.convert("RGBA") if "transparency" in image.info else image).convert("RGB")


def _gray(image: Image.Image, weights: _Weights) -> Pixels:
    if image.mode in ("1", "L", "LA"):
        return np.asarray(image.convert("L"))
    red, green, blue = np.moveaxis(np.asarray(_rgb(image)).astype(np.int32), 2, 0)
    of_red, of_green, of_blue, addend, num_bits = weights
    gray: Pixels = ((of_red * red + of_green * green + of_blue * blue + addend) >> num_bits).astype(np.uint8)
    return gray


def _blue_first(image: Image.Image) -> Pixels:
    """(C, H, W) of an RGB or RGBA image: blue, green, red, and alpha if it has one."""
    order = [2, 1, 0, 3][: len(image.getbands())]
    return np.moveaxis(np.asarray(image), 2, 0)[order]


def _why(content: bytes, error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"the image is too large: at most {MAX_PIXELS:,} pixels are decoded"
    start = content[:4].hex(" ") or "(none)"
    found = f"no whole image of the kinds {', '.join(FORMATS)} ({len(content)} bytes, starting {start})"
    if isinstance(error, UnidentifiedImageError):
        return found
    return f"{found}: {' '.join(str(error).split())[:200] or type(error).__name__}"


Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

_BITS = 11


def resized(image_CHW: Pixels, size: tuple[int, int]) -> Pixels:
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
    pixels: Pixels = ((upper + lower + 2) >> 2).clip(0, 255).astype(np.uint8)
    return pixels


def _neighbours(old: int, new: int, whole_at_border: bool) -> tuple[Int64s, Int64s, Int32s, Int32s]:
    """For each new pixel its two old ones, and their weights in 2048ths. Beyond the border both are the nearest pixel,
    in one part, or in two that are rounded separately, as OpenCV does from row to row."""
    centres = ((np.arange(new) + 0.5) * (1 / (new / old)) - 0.5).astype(np.float32)
    lower = np.floor(centres).astype(np.int64)
    fractions = centres - lower.astype(np.float32)
    if whole_at_border:
        fractions[(lower < 0) | (lower >= old - 1)] = 0
    scale = np.float32(1 << _BITS)
    weights = [np.rint(part * scale).astype(np.int32) for part in (np.float32(1) - fractions, fractions)]
    return lower.clip(0, old - 1), (lower + 1).clip(0, old - 1), weights[0], weights[1]


def _halved(image_CHW: Pixels) -> Pixels:
    channels, height, width = image_CHW.shape
    quads = image_CHW.reshape(channels, height // 2, 2, width // 2, 2).sum(axis=(2, 4), dtype=np.int32)
    pixels: Pixels = ((quads + 2) >> 2).astype(np.uint8)
    return pixels
