"""The shapes of what a program gives a net: those it names, those the prototxt tells, those of the data."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from samovar.core.errors import InputError
from samovar.data.reader import BatchReader
from samovar.formats.caffe.blob import read_mean
from samovar.formats.caffe.text import nearest
from samovar.frontends.caffe.data import data_config
from samovar.frontends.caffe.definition import CaffeNetDefinition
from samovar.frontends.caffe.layers.inputs import input_shapes
from samovar.frontends.caffe.layers.registry import DATA_TYPES, INPUT_TYPES
from samovar.frontends.caffe.paths import find_named
from samovar.frontends.caffe.spec import LayerSpec, Phase, Shape, checked


def sized(
    definition: CaffeNetDefinition, phase: Phase, given: Mapping[str, Sequence[int]], batch_size: int | None
) -> tuple[CaffeNetDefinition, dict[str, Shape]]:
    """The definition with these shapes in its Input layers, and the shape of every input blob in file order.

    `given` are shapes by blob, batch first; `batch_size` replaces the first axis of the others. Raises InputError
    for a blob in `given` that is no input, and for a data layer whose shapes cannot be found.
    """
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; give at least 1")
    sources = [spec for spec in definition.in_phase(phase) if spec.type in (*DATA_TYPES, *INPUT_TYPES)]
    names = [top for spec in sources for top in spec.tops]
    for name in given:
        if name not in names:
            raise InputError(
                f"{definition.path}: a shape is given for '{name}', which is no input of phase {phase}; "
                f"{nearest(name, names)}"
            )
    shapes: dict[str, Shape] = {}
    for spec in sources:
        found = _shapes(spec, given)
        if batch_size is not None:
            found = [(batch_size, *shape[1:]) if shape else shape for shape in found]
        for top, shape in zip(spec.tops, found, strict=True):
            shapes[top] = checked(spec, tuple(map(int, given.get(top, shape))), f"input '{top}'")
    layers = tuple(_as_input(spec, shapes) if spec.type in INPUT_TYPES else spec for spec in definition.layers)
    return replace(definition, layers=layers), shapes


def _as_input(spec: LayerSpec, shapes: Mapping[str, Shape]) -> LayerSpec:
    """An Input layer of these shapes; of another phase's layer, nothing changes."""
    if not all(top in shapes for top in spec.tops):
        return spec
    message = type(spec.message)()
    message.CopyFrom(spec.message)
    message.type = "Input"
    del message.input_param.shape[:]
    for top in spec.tops:
        message.input_param.shape.add(dim=shapes[top])
    return replace(spec, message=message)


def _shapes(spec: LayerSpec, given: Mapping[str, Sequence[int]]) -> list[Shape]:
    """Those of the layer's tops; labels need not be given where images are."""
    if spec.type in INPUT_TYPES:
        return input_shapes(spec)
    if all(top in given for top in spec.tops):
        return [tuple(given[top]) for top in spec.tops]
    if spec.type == "HDF5Data":
        return _of_source(spec)
    first = given.get(spec.tops[0]) if spec.tops else None
    shape = tuple(first) if first else _image_shape(spec)
    return [shape, shape[:1]][: len(spec.tops)] if shape else _of_source(spec)


def _image_shape(spec: LayerSpec) -> Shape | None:
    """(N, C, H, W) of a layer's images as far as the prototxt and its mean file tell."""
    transform, images = spec.message.transform_param, spec.message.image_data_param
    size = (transform.crop_size,) * 2 if transform.crop_size else (images.new_height, images.new_width)
    channels = _num_channels(spec)
    if not all(size) or not channels:
        return None
    return (max(1, getattr(spec.message, DATA_TYPES[spec.type][0]).batch_size), channels, *size)


def _num_channels(spec: LayerSpec) -> int:
    """0 where neither type nor mean tell it; a mean file that is not there tells nothing."""
    transform = spec.message.transform_param
    if spec.type == "WindowData":
        return 3
    if spec.type == "ImageData":
        return 3 if spec.message.image_data_param.is_color else 1
    if len(transform.mean_value) > 1:
        return len(transform.mean_value)
    try:
        return len(read_mean(find_named(transform.mean_file, spec.path, ""))) if transform.mean_file else 0
    except InputError:
        return 0


def _of_source(spec: LayerSpec) -> list[Shape]:
    """Read from what the layer reads."""
    is_training = spec.phase == "TRAIN"
    try:
        with BatchReader((data_config(spec, is_training),), is_training) as reader:
            return [reader.top_shapes[top] for top in spec.tops]
    except InputError as error:
        num = 1 if spec.type != "HDF5Data" else None
        tops = ", ".join(f"'{top}': (...)" for top in spec.tops[:num])
        flags = " ".join(f"--shape {top}=..." for top in spec.tops[:num])
        raise InputError(
            f"{error}. Where the source is not at hand, give the shapes of layer '{spec.name}', batch first: "
            f"input_shapes={{{tops}}} in Python, {flags} to samovar inspect"
        ) from error
