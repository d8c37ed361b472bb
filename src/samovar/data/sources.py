"""What one data layer gives for a run of global samples: records in their order, transformed."""

from typing import Protocol, TypeAlias

import torch

from samovar.core.errors import InputError
from samovar.data.cache import HeldImages, HeldRecords, Holding, Loaded, LoadedImages
from samovar.data.config import DataConfig, Hdf5DataConfig, ImageDataConfig, LayerConfig, WindowDataConfig
from samovar.data.dataset import ImageDataset, LmdbDataset
from samovar.data.hdf5_rows import Hdf5Source
from samovar.data.image_list import ImageListDataset
from samovar.data.order import SampleOrder, sample_indices
from samovar.data.transform import Transform
from samovar.data.windows import WindowSource

Tensors: TypeAlias = dict[str, torch.Tensor]


class Source(Protocol):
    """The samples of one data layer; holds no position."""

    sample_shapes: dict[str, tuple[int, ...]]
    """Shape of one sample of each top, in the layer's order."""
    held: HeldRecords | None
    """The records, once they are held."""

    def __len__(self) -> int:
        """The number of records."""

    def loaded(self) -> Loaded:
        """The records, as `hold` would load them."""

    def hold(self, holding: Holding) -> None:
        """From now on take records from the memory of all ranks, which must call this together; the files are closed.

        Raises: InputError for a damaged record, or where memory is short.
        """

    def read(self, first_sample: int, count: int) -> Tensors:
        """The global samples [first_sample, first_sample + count), by top; InputError for a damaged record."""

    def close(self) -> None:
        """Give the files back; may be called again."""


class ImageSource:
    """Images float32 (n, C, H, W), transformed, and labels int64 (n,), of an LMDB or a list of image files."""

    def __init__(self, config: DataConfig | ImageDataConfig, seed: int, shuffled: bool) -> None:
        _check_tops(config)
        self._tops = config.tops
        self._dataset = _open_images(config)
        try:
            self._transform = Transform(config, self._dataset.sample_shape, seed)
        except BaseException:
            self._dataset.close()
            raise
        self._order = SampleOrder(len(self._dataset), seed, shuffled)
        self.held: HeldRecords | None = None
        self.sample_shapes = dict(zip(config.tops, (self._transform.output_shape, ()), strict=False))

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, first_sample: int, count: int) -> Tensors:
        indices = sample_indices(self._order, first_sample, count)
        if self._transform.takes_any_size:
            images, labels = self._dataset.read_each(indices)
            transformed = self._transform.of_each(images, first_sample)
        else:
            stacked, labels = self._dataset.read(indices)
            transformed = self._transform(stacked, first_sample)
        return dict(zip(self._tops, (transformed, torch.from_numpy(labels)), strict=False))

    def loaded(self) -> LoadedImages:
        return LoadedImages(self._dataset, self._transform.takes_any_size)

    def hold(self, holding: Holding) -> None:
        images = HeldImages(self._dataset.sample_shape, self.loaded(), holding)
        self._dataset.close()
        self._dataset, self.held = images, images.records

    def close(self) -> None:
        self._dataset.close()


def open_source(config: LayerConfig, seed: int, shuffled: bool) -> Source:
    """The source of one data layer; `shuffled` asks for what the layer itself may ask for too.

    Raises: InputError where the files, their records and the layer do not fit together.
    """
    if config.batch_size < 1:
        raise InputError(f"{config.source}: batch_size is {config.batch_size}; it must be at least 1.")
    if isinstance(config, Hdf5DataConfig):
        return Hdf5Source(config, seed, shuffled or config.shuffled)
    if isinstance(config, WindowDataConfig):
        return WindowSource(config, seed)
    own = isinstance(config, ImageDataConfig) and config.shuffled
    return ImageSource(config, seed, shuffled or own)


def _open_images(config: DataConfig | ImageDataConfig) -> ImageDataset:
    if isinstance(config, ImageDataConfig):
        return ImageListDataset(config)
    return LmdbDataset(config.source, config.transform)


def _check_tops(config: DataConfig | ImageDataConfig) -> None:
    if not 1 <= len(config.tops) <= 2:
        raise InputError(
            f"{config.source}: a Data layer has {len(config.tops)} tops {list(config.tops)}; give one "
            "for the images and, if wanted, a second for the labels."
        )
