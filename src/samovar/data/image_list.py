"""Image files by a list, as Caffe's ImageData reads: a line is "path label", the label behind the last space."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError
from samovar.data.config import ImageDataConfig
from samovar.data.dataset import Images, Labels
from samovar.data.listed import ListedFiles
from samovar.data.resize import resized
from samovar.formats.caffe.files import read_file
from samovar.formats.image import Channels, read_image

MAX_LIST_BYTES = 1 << 30


class ImageListDataset:
    """The images of one list, numbered 0 .. len - 1 by line, decoded (and resized) when they are read.

    Where a path starts, and that it may not leave that folder: see `ListedFiles`.
    `sample_shape` is (C, H, W) of the first image, as in Caffe.
    Raises: InputError, with file and line, for a list that cannot be used, and for a first image likewise.
    """

    def __init__(self, config: ImageDataConfig) -> None:
        self.source = config.source
        advice = 'check the list, or give the folder that holds all the images as root_folder ("/" for any)'
        self._files = ListedFiles(config.source, config.root, advice)
        self._new_size = config.new_size
        self._channels: Channels = "color" if config.is_color else "gray"
        self._content = read_file(config.source, "image list", MAX_LIST_BYTES)
        self._starts, self._ends, self._labels = parse_list(self._content, config.source)
        if not len(self._starts):
            raise InputError(f"{self.source}: lists no image. Write a line 'path label' for each.")
        channels, height, width = self._image(0).shape
        self.sample_shape = channels, height, width

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, indices: npt.NDArray[np.int64]) -> tuple[Images, Labels]:
        """Images uint8 (n, C, H, W) and labels int64 (n,). Cost: one decoding each.

        Raises: InputError naming the line of an image that is missing, damaged, elsewhere or of another size.
        """
        images = np.empty((len(indices), *self.sample_shape), np.uint8)
        for place, index in enumerate(indices.tolist()):
            image = self._image(index)
            if image.shape != self.sample_shape:
                raise InputError(
                    f"{self._where(index)}: the image has shape {image.shape}, the first one {self.sample_shape}; a "
                    "batch needs one shape (channels, height, width). Give new_height and new_width, or a crop_size "
                    "(without mean_file)."
                )
            images[place] = image
        return images, self._labels[indices]

    def read_each(self, indices: npt.NDArray[np.int64]) -> tuple[list[Images], Labels]:
        """As `read`, with images (C, H, W) of any height and width."""
        return [self._image(index) for index in indices.tolist()], self._labels[indices]

    def close(self) -> None:
        """Nothing is open between reads."""

    def _image(self, index: int) -> npt.NDArray[np.uint8]:
        written = self._content[self._starts[index] : self._ends[index]].decode("utf-8", "surrogateescape")
        try:
            image = read_image(self._files.find(written), self._channels)
        except InputError as error:
            raise InputError(f"{self._where(index)}: {error}") from error
        return image if self._new_size is None else resized(image, self._new_size)

    def _where(self, index: int) -> str:
        line = self._content.count(b"\n", 0, int(self._starts[index])) + 1
        return f"{self.source}:{line}"


def parse_list(content: bytes, source: Path) -> tuple[Labels, Labels, Labels]:
    """Start and end of each path in `content`, and its label; blank lines are left out.

    Raises: InputError, with file and line, for a line that is no "path label".
    """
    starts, ends, labels = [], [], []
    position = 0
    for number, line in enumerate(content.split(b"\n"), start=1):
        written, _, label = line.rstrip().rpartition(b" ")
        if label:
            if not written.strip() or not _is_label(label):
                raise InputError(
                    f"{source}:{number}: is no 'path label': {line[:80].decode('utf-8', 'backslashreplace')!r}. "
                    "End the line with a space and a whole number below 2,147,483,648."
                )
            starts.append(position)
            ends.append(position + len(written))
            labels.append(int(label))
        position += len(line) + 1
    return np.array(starts, np.int64), np.array(ends, np.int64), np.array(labels, np.int64)


def _is_label(text: bytes) -> bool:
    digits = text.removeprefix(b"-")
    return digits.isdigit() and len(digits) <= 10 and -(1 << 31) <= int(text) < 1 << 31
