"""Decoding and resizing, against OpenCV: what Caffe itself uses."""

import contextlib
import os
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from samovar.core.errors import InputError
from samovar.formats.image import Channels, decode_image, read_image, resized
from tests.unit.data.pictures import Bytes, encoded, picture

FLAGS: dict[Channels, int] = {"color": cv2.IMREAD_COLOR, "gray": cv2.IMREAD_GRAYSCALE, "stored": cv2.IMREAD_UNCHANGED}
RGBA = np.dstack([picture(), picture(seed=1)[..., 0]])
FILES = {
    **{f"JPEG {mode}": encoded(picture(), "JPEG", mode) for mode in ("RGB", "L")},
    "JPEG MPO": encoded(picture(), "MPO", save_all=True, append_images=[Image.fromarray(picture())]),
    "JPEG progressive": encoded(picture(), "JPEG", progressive=True, subsampling=1, quality=60),
    **{f"JPEG turned {n}": encoded(picture(), "JPEG", orientation=n) for n in range(2, 9)},
    **{f"PNG {mode}": encoded(picture(), "PNG", mode) for mode in ("RGB", "L", "LA", "1", "P")},
    "PNG RGBA": encoded(RGBA, "PNG", "RGBA"),
    "PNG turned": encoded(picture(), "PNG", orientation=6),
    **{f"BMP {mode}": encoded(picture(), "BMP", mode) for mode in ("RGB", "L", "P", "1")},
    **{f"PPM {mode}": encoded(picture(), "PPM", mode) for mode in ("RGB", "L")},
}


def of_opencv(content: bytes, channels: Channels) -> Bytes:
    pixels = cv2.imdecode(np.frombuffer(content, np.uint8), FLAGS[channels])
    assert pixels is not None
    return np.moveaxis(np.atleast_3d(pixels), 2, 0)


@pytest.mark.parametrize("channels", FLAGS)
@pytest.mark.parametrize("kind", FILES)
def test_decodes_as_opencv(kind: str, channels: Channels) -> None:
    np.testing.assert_array_equal(decode_image(FILES[kind], channels), of_opencv(FILES[kind], channels))


def test_print_colours_within_one() -> None:
    content = encoded(picture(), "JPEG", "CMYK")
    ours, theirs = decode_image(content, "color"), of_opencv(content, "color")
    assert np.abs(ours.astype(int) - theirs).max() <= 1


@pytest.mark.parametrize("channels", ["color", "gray"])
def test_samples_of_16_bits_lose_their_low_byte(channels: Channels) -> None:
    wide = np.random.default_rng(0).integers(0, 1 << 16, (10, 11), np.uint16)
    _, content = cv2.imencode(".png", wide)
    np.testing.assert_array_equal(decode_image(content.tobytes(), channels), of_opencv(content.tobytes(), channels))
    with pytest.raises(InputError, match="more than 8 bits"):
        decode_image(content.tobytes(), "stored")


def test_channels_are_blue_green_red() -> None:
    red = np.zeros((2, 2, 3), np.uint8)
    red[..., 0] = 255
    assert decode_image(encoded(red, "PNG"), "color")[:, 0, 0].tolist() == [0, 0, 255]


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG that declares a size, whatever it holds."""
    chunks = [(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"no whole image of the kinds JPEG, PNG, BMP, PPM \(0 bytes, starting \(none\)\)"),
        (b"GIF89a" + bytes(20), "starting 47 49 46 38"),
        (FILES["JPEG RGB"][:-200], "truncated"),
        (FILES["PNG RGB"][:500], "no whole image"),
        (png(20_000, 20_000), "at most 67,108,864 pixels"),
        (png(9_000, 9_000), "is 9000 x 9000; at most 67,108,864 pixels"),
        (png(2**31 - 1, 2**31 - 1), "at most 67,108,864 pixels"),
        (png(5, 5, zlib.compress(bytes(3))), "no whole image"),
        (png(0, 5), "no whole image"),
    ],
)
def test_damaged_images_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        decode_image(content, "color")


def test_flipped_bytes_never_crash() -> None:
    generator = np.random.default_rng(0)
    for kind in ("JPEG RGB", "PNG RGB", "PNG P", "BMP P"):
        for _ in range(60):
            content = bytearray(FILES[kind])
            for place in generator.integers(0, min(len(content), 400), 3):
                content[place] ^= int(generator.integers(1, 256))
            with contextlib.suppress(InputError):
                assert decode_image(bytes(content), "color").dtype == np.uint8


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(InputError, match=r"pipe\.jpg: is not a regular file"):
        read_image(tmp_path / "pipe.jpg", "color")
    with pytest.raises(InputError, match=r"nowhere\.jpg: no such image file"):
        read_image(tmp_path / "nowhere.jpg", "color")


def sizes() -> list[tuple[int, ...]]:
    drawn = np.random.default_rng(0).integers(1, 90, (60, 4))
    return [*map(tuple, drawn.tolist()), (40, 60, 20, 30), (40, 60, 20, 60), (1, 1, 5, 7), (7, 5, 1, 1), (9, 9, 9, 9)]


@pytest.mark.parametrize("num_channels", [1, 3])
def test_resizes_as_opencv_bit_for_bit(num_channels: int) -> None:
    generator = np.random.default_rng(1)
    for height, width, new_height, new_width in sizes():
        image = generator.integers(0, 256, (height, width, num_channels), np.uint8)
        wanted = cv2.resize(image, (new_width, new_height)).reshape(new_height, new_width, num_channels)
        found = resized(np.moveaxis(image, 2, 0), (new_height, new_width))
        np.testing.assert_array_equal(np.moveaxis(found, 0, 2), wanted)
