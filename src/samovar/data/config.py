"""What data layers ask for: the source, the batch, and Caffe's transform_param."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TransformConfig:
    """pixel -> (pixel - mean) * scale, then crop and mirror; zero, empty and None mean "not asked for"."""

    scale: float = 1.0
    mean_values: tuple[float, ...] = ()
    """One value for all channels, or one per channel."""
    mean_file: Path | None = None
    """A BlobProto of the images' shape; not together with `mean_values`."""
    crop_size: int = 0
    """Height and width of the crop: at random in training, in the centre otherwise."""
    mirror: bool = False
    """Left-right flip of every second sample, at random (in testing too, as in Caffe)."""
    force_color: bool = False
    """Decode compressed records to blue, green, red; otherwise they keep the channels they have."""
    force_gray: bool = False
    """Decode compressed records to one channel."""


@dataclass(frozen=True, slots=True)
class DataConfig:
    """One Data layer: an LMDB of Datum records."""

    source: Path
    batch_size: int
    """Samples in one batch; whether per worker or of all workers together is the caller's."""
    tops: tuple[str, ...]
    """Names of the outputs: the images, and the labels where a second one is given."""
    transform: TransformConfig
    training: bool


@dataclass(frozen=True, slots=True)
class Hdf5DataConfig:
    """One HDF5Data layer: `source` lists HDF5 files, each with a dataset for every top, by its name."""

    source: Path
    batch_size: int
    tops: tuple[str, ...]
    shuffled: bool = False
    """A new order of files, and of the rows in each, every epoch; in testing too, as in Caffe."""
    training: bool = False


@dataclass(frozen=True, slots=True)
class ImageDataConfig:
    """One ImageData layer: `source` lists image files with a label each, "path label"."""

    source: Path
    batch_size: int
    tops: tuple[str, ...]
    """Names of the images' and the labels' outputs."""
    transform: TransformConfig
    training: bool
    root: Path | None = None
    """The folder that the list's paths start at, and that no image may lie outside of."""
    new_size: tuple[int, int] | None = None
    """Height and width that every image is resized to."""
    is_color: bool = True
    """Three channels (blue, green, red) rather than one."""
    shuffled: bool = False
    """A new order every epoch; in testing too, as in Caffe."""


@dataclass(frozen=True, slots=True)
class WindowDataConfig:
    """One WindowData layer: `source` lists images with windows in them, of objects and of background."""

    source: Path
    batch_size: int
    tops: tuple[str, ...]
    """Names of the windows' and the classes' outputs."""
    transform: TransformConfig
    """Its `crop_size` is the size that windows are stretched to; it has a `scale` of its own."""
    training: bool
    root: Path | None = None
    """The folder that the file's paths start at, and that no image may lie outside of."""
    scale: float = 1.0
    fg_threshold: float = 0.5
    """The least overlap of an object's window."""
    bg_threshold: float = 0.5
    """The overlap that a window of background stays below."""
    fg_fraction: float = 0.25
    """The part of a batch that is objects."""
    context_pad: int = 0
    """Pixels around the window, after it was stretched."""
    is_square: bool = False
    """Grow the shorter side before stretching."""


LayerConfig: TypeAlias = DataConfig | Hdf5DataConfig | ImageDataConfig | WindowDataConfig
