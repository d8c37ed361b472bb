"""Data layers as the configuration of Samovar's data reader."""

import math
from pathlib import Path

from samovar.data.config import (
    DataConfig,
    Hdf5DataConfig,
    ImageDataConfig,
    LayerConfig,
    TransformConfig,
    WindowDataConfig,
)
from samovar.formats.image import MAX_PIXELS
from samovar.frontends.caffe.layers.registry import DATA_TYPES
from samovar.frontends.caffe.spec import LayerSpec, find_named

_LMDB = 1  # DataParameter.DB
_OLD_FIELDS = ("scale", "mean_file", "crop_size", "mirror")
_OWNERS = {kind: main for kind, (main, *_) in DATA_TYPES.items()}
_CROP_MODES = ("warp", "square")
_WITHOUT_EFFECT = {
    "rand_skip": "the order of samples follows from the seed",
    "force_encoded_color": "write transform_param { force_color: true }",
    "cache_images": "files that were read stay in the system's cache",
}


def data_config(spec: LayerSpec) -> LayerConfig:
    """The configuration of a layer of a DATA_TYPE; InputError for a missing, wrong or unsupported setting."""
    owner = _OWNERS[spec.type]
    settings = getattr(spec.message, owner)
    if not settings.batch_size:
        raise spec.error("batch_size is missing or 0; give the number of samples", owner)
    if spec.type == "HDF5Data":
        return Hdf5DataConfig(_source(spec), settings.batch_size, spec.tops, settings.shuffle, spec.is_training)
    for field in _OLD_FIELDS:
        if settings.HasField(field) and (spec.type, field) != ("WindowData", "scale"):
            raise spec.error(
                f"{field} in {owner} is the old place, which Caffe ignores; write it in transform_param", owner, field
            )
    if spec.type == "WindowData":
        return _windows(spec)
    return _database(spec) if spec.type == "Data" else _image_list(spec)


def data_warnings(spec: LayerSpec) -> list[str]:
    """Settings of a data layer that have no effect here."""
    if spec.type not in _OWNERS:
        return []
    owner = _OWNERS[spec.type]
    settings, transform = getattr(spec.message, owner), spec.message.transform_param
    warnings = [
        f"{spec.where(owner, field)}: {field} has no effect; {instead}"
        for field, instead in _WITHOUT_EFFECT.items()
        if getattr(settings, field, False)
    ]
    if spec.type == "WindowData" and transform.HasField("scale"):
        place = spec.where("transform_param.scale")
        warnings.append(f"{place}: scale has no effect on a layer of type WindowData; that of window_data_param has")
    for field in ("force_color", "force_gray"):
        if spec.type == "ImageData" and getattr(transform, field):
            place = spec.where("transform_param", field)
            warnings.append(f"{place}: {field} has no effect on a layer of type ImageData; is_color decides")
    return warnings


def refuse_memory_data(spec: LayerSpec) -> None:
    """InputError for a MemoryData layer, because no program fills it."""
    if spec.type == "MemoryData":
        raise spec.error(
            "a layer of type MemoryData is filled by a program: load the net with samovar.caffe.load and give it "
            "the arrays, or write a Data, HDF5Data or ImageData layer for files",
            "type",
        )


def _database(spec: LayerSpec) -> DataConfig:
    settings = spec.message.data_param
    if settings.backend != _LMDB:
        raise spec.error(
            "backend: LEVELDB (Caffe's default) is not read while training; copy the records into an LMDB "
            "(samovar data leveldb --source FOLDER --out FOLDER_lmdb), give that as source, and write backend: LMDB",
            "data_param.backend",
        )
    return DataConfig(_source(spec), settings.batch_size, spec.tops, _transform(spec), spec.is_training)


def _image_list(spec: LayerSpec) -> ImageDataConfig:
    settings = spec.message.image_data_param
    sizes = settings.new_height, settings.new_width
    if (sizes[0] > 0) != (sizes[1] > 0):
        raise spec.error(f"new_height: {sizes[0]} and new_width: {sizes[1]}; give both, or neither", "image_data_param")
    if sizes[0] * sizes[1] > MAX_PIXELS:
        raise spec.error(
            f"new_height: {sizes[0]} and new_width: {sizes[1]}; an image may have {MAX_PIXELS:,} pixels",
            "image_data_param",
        )
    return ImageDataConfig(
        *(_source(spec), settings.batch_size, spec.tops, _transform(spec), spec.is_training),
        root=_root(spec),
        new_size=sizes if all(sizes) else None,
        is_color=settings.is_color,
        shuffled=settings.shuffle,
    )


def _windows(spec: LayerSpec) -> WindowDataConfig:
    settings, owner = spec.message.window_data_param, "window_data_param"
    transform = _transform(spec)
    if not transform.crop_size:
        raise spec.error("crop_size is missing or 0; give the size that windows are stretched to", "transform_param")
    if settings.crop_mode not in _CROP_MODES:
        raise spec.error(
            f"crop_mode: '{settings.crop_mode}'; give one of: {', '.join(_CROP_MODES)}", owner, "crop_mode"
        )
    if 2 * settings.context_pad >= transform.crop_size:
        size = f"context_pad: {settings.context_pad} of a crop_size of {transform.crop_size}"
        raise spec.error(f"{size} leaves nothing of the window; it must be less than half", owner, "context_pad")
    if not 0 <= settings.fg_fraction <= 1:
        raise spec.error(f"fg_fraction: {settings.fg_fraction:g}; it must be 0 to 1", owner, "fg_fraction")
    return WindowDataConfig(
        *(_source(spec), settings.batch_size, spec.tops, transform, spec.is_training),
        root=_root(spec),
        scale=spec.finite(owner, "scale"),
        fg_threshold=spec.finite(owner, "fg_threshold"),
        bg_threshold=spec.finite(owner, "bg_threshold"),
        fg_fraction=settings.fg_fraction,
        context_pad=settings.context_pad,
        is_square=settings.crop_mode == "square",
    )


def _source(spec: LayerSpec) -> Path:
    return _named(spec, _OWNERS[spec.type], "source")


def _root(spec: LayerSpec) -> Path | None:
    owner = _OWNERS[spec.type]
    return _named(spec, owner, "root_folder") if getattr(spec.message, owner).root_folder else None


def _named(spec: LayerSpec, owner: str, field: str) -> Path:
    """The file or folder that a setting names."""
    written = getattr(getattr(spec.message, owner), field)
    return find_named(written, spec.path, f"{spec.where(owner, field)}: {field}")


def _transform(spec: LayerSpec) -> TransformConfig:
    settings = spec.message.transform_param
    mean_values = tuple(settings.mean_value)
    if settings.HasField("mean_file") and mean_values:
        raise spec.error("mean_file and mean_value are both given; keep one of them", "transform_param")
    if settings.force_color and settings.force_gray:
        raise spec.error("force_color and force_gray are both given; keep one of them", "transform_param")
    if not all(map(math.isfinite, (settings.scale, *mean_values))):
        raise spec.error("scale and mean_value must be finite numbers", "transform_param")
    return TransformConfig(
        scale=settings.scale,
        mean_values=mean_values,
        mean_file=_named(spec, "transform_param", "mean_file") if settings.HasField("mean_file") else None,
        crop_size=settings.crop_size,
        mirror=settings.mirror,
        force_color=settings.force_color,
        force_gray=settings.force_gray,
    )
