"""A Data layer as the configuration of Samovar's data reader."""

import math
from pathlib import Path

from samovar.data.config import DataConfig, TransformConfig
from samovar.frontends.caffe.paths import find_named
from samovar.frontends.caffe.spec import LayerSpec

_LMDB = 1  # DataParameter.DB
_OLD_FIELDS = ("scale", "mean_file", "crop_size", "mirror")


def data_config(spec: LayerSpec, training: bool) -> DataConfig:
    """Source, batch and transform of a Data layer; InputError for what is missing, wrong or not supported."""
    settings = spec.message.data_param
    if not settings.batch_size:
        raise spec.error("batch_size is missing or 0; give the number of samples", "data_param")
    if settings.backend != _LMDB:
        raise spec.error(
            "backend: LEVELDB (also what Caffe takes where none is given) is not supported; make an LMDB "
            "(convert_imageset or convert_mnist_data with --backend=lmdb) and write backend: LMDB",
            "data_param",
            "backend",
        )
    for field in _OLD_FIELDS:
        if settings.HasField(field):
            raise spec.error(
                f"{field} in data_param is the old place, which Caffe ignores; write it in transform_param",
                "data_param",
                field,
            )
    source = find_named(settings.source, spec.path, f"{spec.where('data_param', 'source')}: source")
    return DataConfig(source, settings.batch_size, spec.tops, _transform(spec), training)


def data_warnings(spec: LayerSpec) -> list[str]:
    """Settings of a Data layer that have no effect here."""
    settings, transform = spec.message.data_param, spec.message.transform_param
    warnings = []
    if settings.rand_skip:
        place = spec.where("data_param", "rand_skip")
        warnings.append(f"{place}: rand_skip has no effect; the order of samples follows from the seed")
    for owner, message, field in (
        ("data_param", settings, "force_encoded_color"),
        ("transform_param", transform, "force_color"),
        ("transform_param", transform, "force_gray"),
    ):
        if getattr(message, field):
            warnings.append(f"{spec.where(owner, field)}: {field} has no effect on images that are not encoded")
    return warnings


def _transform(spec: LayerSpec) -> TransformConfig:
    settings = spec.message.transform_param
    mean_values = tuple(settings.mean_value)
    if settings.HasField("mean_file") and mean_values:
        raise spec.error("mean_file and mean_value are both given; keep one of them", "transform_param")
    if not all(map(math.isfinite, (settings.scale, *mean_values))):
        raise spec.error("scale and mean_value must be finite numbers", "transform_param")
    return TransformConfig(
        scale=settings.scale,
        mean_values=mean_values,
        mean_file=_mean_file(spec) if settings.HasField("mean_file") else None,
        crop_size=settings.crop_size,
        mirror=settings.mirror,
    )


def _mean_file(spec: LayerSpec) -> Path:
    where = f"{spec.where('transform_param', 'mean_file')}: mean_file"
    return find_named(spec.message.transform_param.mean_file, spec.path, where)
