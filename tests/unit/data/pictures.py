"""Small pictures as compressed files of many kinds."""

import io

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

Bytes = npt.NDArray[np.uint8]


def picture(height: int = 47, width: int = 61, seed: int = 0) -> Bytes:
    """Smooth colours (H, W, 3), as a photograph has: JPEG keeps them."""
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), np.uint8)
    return np.asarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC))


def encoded(pixels: Bytes, kind: str, mode: str = "RGB", orientation: int = 1, **options: object) -> bytes:
    """The picture as a file of `kind`; with an EXIF orientation other than 1, turned on reading."""
    image = Image.fromarray(pixels)
    image = image.quantize(64) if mode == "P" else image.convert(mode)
    if orientation != 1:
        exif = Image.Exif()
        exif[0x112] = orientation
        options["exif"] = exif.tobytes()
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()
