"""The settings of data layers: the source, the batch, and Caffe's transform_param."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TransformConfig:
    """pixel -> (pixel - mean) * scale, then crop and mirror; zero, empty and None mean "not asked for"."""

    scale: float = 1.0
    mean_values: tuple[float, ...] = ()  # one value for all channels, or one per channel
    mean_file: Path | None = None  # A BlobProto of the images' shape; not together with `mean_values`
    crop_size: int = 0  # height and width of the crop: at random in training, in the centre otherwise
    mirror: bool = False  # left-right flip of every second sample, at random (in testing too, as in Caffe)
    force_color: bool = False
    """Decode compressed records to blue, green, red; otherwise they keep the channels they have."""
    force_gray: bool = False  # decode compressed records to one channel


@dataclass(frozen=True, slots=True)
class DataConfig:
    """One Data layer, which reads an LMDB of Datum records. Other image layers extend it."""

    source: Path
    batch_size: int  # samples in one batch; whether per worker or of all workers together is the caller's
    tops: tuple[str, ...]
    """Names of the outputs: the images, and the labels (of WindowData: classes) if there is a second."""
    transform: TransformConfig
    training: bool


@dataclass(frozen=True, slots=True)
class Hdf5DataConfig:
    """One HDF5Data layer: `source` lists HDF5 files, each with a dataset for every top, by its name."""

    source: Path
    batch_size: int
    tops: tuple[str, ...]
    shuffled: bool = False  # A new order of files, and of the rows in each, every epoch; in testing too, as in Caffe
    training: bool = False


@dataclass(frozen=True, slots=True)
class ImageDataConfig(DataConfig):
    """One ImageData layer: `source` lists image files with a label each, "path label"."""

    root: Path | None = None  # the folder that the list's paths start at, and that no image may lie outside of
    new_size: tuple[int, int] | None = None  # height and width that every image is resized to
    is_color: bool = True  # three channels (blue, green, red) rather than one
    shuffled: bool = False  # A new order every epoch; in testing too, as in Caffe


@dataclass(frozen=True, slots=True)
class WindowDataConfig(DataConfig):
    """One WindowData layer: `source` lists images with windows of objects and of background.
    The transform's `crop_size` is the size that windows are stretched to; its `scale` has no effect."""

    root: Path | None = None  # the folder that the file's paths start at, and that no image may lie outside of
    scale: float = 1.0
    fg_threshold: float = 0.5  # the least overlap of an object's window
    bg_threshold: float = 0.5  # the overlap that a window of background stays below
    fg_fraction: float = 0.25  # the part of a batch that is objects
    context_pad: int = 0  # pixels around the window, after it was stretched
    is_square: bool = False  # grow the shorter side before stretching


LayerConfig: TypeAlias = DataConfig | Hdf5DataConfig
