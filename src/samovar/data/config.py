"""What a data layer asks for: the source, the batch, and Caffe's transform_param."""

from dataclasses import dataclass
from pathlib import Path


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
