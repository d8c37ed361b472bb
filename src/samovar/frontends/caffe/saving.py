"""A net's weights as a file."""

from pathlib import Path

from samovar.core.durable import publish_file
from samovar.core.errors import InputError
from samovar.formats.caffe.caffemodel import (
    LayerRecord,
    StoredNet,
)
from samovar.frontends.caffe.loading import AnyPath
from samovar.frontends.caffe.module import Net
from samovar.frontends.caffe.state_files import SUFFIXES, encode_named, encode_stored, require_finite


def save(net: Net, path: AnyPath) -> None:
    """Write the net's weights to `path`, over what is there: .caffemodel, .caffemodel.h5, .safetensors, .pt or .pth.

    `load` reads them back, Caffe and OpenCV the first two. The file is whole or as it was before. Raises InputError
    for another suffix, for values that are NaN or infinite, and where it cannot be written.
    """
    target = Path(path)
    kind = next((kind for suffix, kind in SUFFIXES.items() if target.name.lower().endswith(suffix)), None)
    if kind is None:
        raise InputError(f"{target}: the suffix says no kind of file; give one of {', '.join(SUFFIXES)}")
    stored = stored_of(net)
    for record in stored.layers:
        require_finite(record, target)
    if kind in ("safetensors", "pt"):
        content = encode_named({n: v.float().cpu().numpy() for n, v in net.state_dict().items()}, stored, kind)
    else:
        content = encode_stored(stored, kind, target)
    try:
        publish_file(target, [content])
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror}; give another name") from error


def stored_of(net: Net) -> StoredNet:
    """The layers as a caffemodel holds them, float32; those that share arrays each with their own copy."""
    layers = {layer.spec.name: layer for layer in net.caffe_net.layers}
    records = []
    for outline in net.caffe_net.layers_for_caffemodel():
        held = layers[outline.name].caffe_parameters() if outline.parameter_names else []
        shaped = zip(held, outline.parameter_shapes, strict=bool(held))
        blobs = [parameter.detach().float().cpu().reshape(shape).numpy() for parameter, shape in shaped]
        records.append(LayerRecord(outline.name, outline.type, outline.bottoms, outline.tops, blobs))
    return StoredNet(net.caffe_net.name, records)
