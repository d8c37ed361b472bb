"""Images that all ranks hold together, as they were decoded."""

import numpy as np
import numpy.typing as npt

from samovar.data.dataset import ImageDataset, Images, Labels
from samovar.data.held import Bytes, HeldRecords, Holding, Int64s

_LABEL, _HEIGHT, _WIDTH, _VALUE_BYTES = range(4)
_TYPES = {1: np.uint8, 4: np.float32}


class LoadedImages:
    """Images of `dataset` as bytes; of any height and width where `any_size`, else all of its `sample_shape`."""

    num_columns = 4

    def __init__(self, dataset: ImageDataset, any_size: bool) -> None:
        self._dataset = dataset
        self._any_size = any_size
        [first], _ = dataset.read_each(np.zeros(1, np.int64))
        self.record_bytes = first.nbytes

    def __len__(self) -> int:
        return len(self._dataset)

    def load(self, indices: Int64s) -> tuple[list[Bytes], Int64s]:
        """See `samovar.data.held.Loaded`."""
        images, labels = (self._dataset.read_each if self._any_size else self._dataset.read)(indices)
        contents = [np.ascontiguousarray(image).reshape(-1).view(np.uint8) for image in images]
        shapes = [(image.shape[1], image.shape[2], image.itemsize) for image in images]
        return contents, np.column_stack([labels, np.array(shapes, np.int64)])


class HeldImages:
    """See `samovar.data.dataset.ImageDataset`: the same images as before, from memory."""

    def __init__(self, sample_shape: tuple[int, int, int], images: LoadedImages, holding: Holding) -> None:
        self.sample_shape = sample_shape
        self.records = HeldRecords(images, holding)

    def __len__(self) -> int:
        return len(self.records)

    def read(self, indices: npt.NDArray[np.int64]) -> tuple[Images, Labels]:
        columns = self.records.columns(indices)
        kinds = np.unique(columns[:, _VALUE_BYTES])
        if len(kinds) > 1:
            images, labels = self.read_each(indices)
            return np.stack(images), labels
        content, _ = self.records.read(indices)
        values = content.view(_TYPES[int(kinds[0])] if len(kinds) else np.uint8)
        return values.reshape(-1, *self.sample_shape), np.ascontiguousarray(columns[:, _LABEL])

    def read_each(self, indices: npt.NDArray[np.int64]) -> tuple[list[Images], Labels]:
        columns = self.records.columns(indices)
        content, ends = self.records.read(indices)
        images = [
            part.view(_TYPES[value_bytes]).reshape(-1, height, width)
            for part, (_, height, width, value_bytes) in zip(
                np.split(content, ends[:-1]) if len(ends) else [], columns.tolist(), strict=True
            )
        ]
        return images, np.ascontiguousarray(columns[:, _LABEL])

    def close(self) -> None:
        """The windows go with the run."""
