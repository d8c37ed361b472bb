"""A net's prototxt: its layers, those of each phase, and the shapes of its inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samovar.core.errors import InputError, nearest
from samovar.data.config import LayerConfig
from samovar.data.reader import BatchReader
from samovar.formats.caffe.blob import read_mean
from samovar.formats.caffe.schema import Message
from samovar.formats.caffe.text import TextMessage, field_names, read_text
from samovar.frontends.caffe.data import data_config, data_warnings, refuse_memory_data
from samovar.frontends.caffe.layers.ends import input_shapes
from samovar.frontends.caffe.layers.registry import DATA_TYPES, INPUT_TYPES, layer_class, settings_of
from samovar.frontends.caffe.solver import NetSource
from samovar.frontends.caffe.solver_checks import FOREIGN_FIELDS, foreign_sentence
from samovar.frontends.caffe.spec import PHASES, LayerSpec, Phase, Shape, checked, find_named
from samovar.frontends.caffe.upgrade import layers_of

_NOT_IN_TRAINING = {
    "debug_info": "of a net is for `samovar test` and `samovar caffe test`; training follows the solver's, as in Caffe",
    "force_backward": "has no effect but that propagate_down is ignored, as in Caffe; there parameters with lr_mult 0 "
    "count for clip_gradients, too",
}
_MAX_NAME_LENGTH = 500  # Caffe knows no limit


@dataclass(frozen=True, slots=True)
class CaffeNetDefinition:
    """A net as written. `warnings` name the settings of the file that have no effect here."""

    path: Path
    name: str
    layers: tuple[LayerSpec, ...]
    level: int
    stages: tuple[str, ...]
    warnings: tuple[str, ...]
    debug_info: bool = False

    def in_phase(self, phase: Phase) -> tuple[LayerSpec, ...]:
        """The layers that Caffe would build in `phase`, by their include and exclude rules."""
        return tuple(replace(spec, phase=phase) for spec in self.layers if self._is_included(spec, phase))

    def data_layers(self, phase: Phase) -> tuple[LayerConfig, ...]:
        """The net's data layers (of DATA_TYPES) in `phase`, in file order; there may be none.

        Raises InputError for a missing, wrong or unsupported setting, and for MemoryData, which only a program can
        fill.
        """
        included = self.in_phase(phase)
        for spec in included:
            refuse_memory_data(spec)
        return tuple(data_config(spec) for spec in included if spec.type in DATA_TYPES)

    def own_batch_size(self, phase: Phase) -> int:
        """Samples in a batch of a net without data layers: the first axis of its first generated blob, else 1."""
        for spec in self.in_phase(phase):
            settings = spec.message.dummy_data_param
            sizes = list(settings.shape[0].dim) if settings.shape else list(settings.num)
            if sizes:
                return max(1, int(sizes[0]))
        first = next(iter(self.input_shapes(phase).values()), ())
        return first[0] if first else 1

    def input_shapes(self, phase: Phase) -> dict[str, Shape]:
        """The shapes of the blobs that the caller fills (Input, MemoryData), by name, in file order."""
        included = [spec for spec in self.in_phase(phase) if spec.type in INPUT_TYPES]
        return {top: shape for spec in included for top, shape in zip(spec.tops, input_shapes(spec), strict=True)}

    def _is_included(self, spec: LayerSpec, phase: Phase) -> bool:
        rules = spec.message.include or spec.message.exclude
        met = any(self._meets(rule, phase) for rule in rules)
        return met if spec.message.include else not met

    def _meets(self, rule: Message, phase: Phase) -> bool:
        return (
            (not rule.HasField("phase") or rule.phase == PHASES[phase])
            and (not rule.HasField("min_level") or self.level >= rule.min_level)
            and (not rule.HasField("max_level") or self.level <= rule.max_level)
            and all(stage in self.stages for stage in rule.stage)
            and not any(stage in self.stages for stage in rule.not_stage)
        )


def load_net(path: Path, level: int | None = None, stages: Sequence[str] = ()) -> CaffeNetDefinition:
    """Read a net's prototxt, in the state `level` (None: the file's own) and the file's stages with `stages`.

    Raises InputError with file and line if it is not a net, has no layers, or has a layer type or phase rule that
    cannot be used.
    """
    names = field_names(path)
    if "base_lr" in names and names.isdisjoint(("layer", "layers")):
        raise InputError(f"{path}: is a solver (it has base_lr), not a net; give the net that it names")
    return net_from_message(read_text(path, "NetParameter", FOREIGN_FIELDS), level, stages)


def net_from_message(text: TextMessage, level: int | None = None, stages: Sequence[str] = ()) -> CaffeNetDefinition:
    """As `load_net`, for a parsed NetParameter, also one inside a solver (`net_param`)."""
    net, path = text.message, text.path
    layers = tuple(LayerSpec(path, message, place) for message, place in layers_of(text))
    if not layers:
        raise InputError(f"{path}: has no layers; give a net's prototxt, not a solver's")
    if reason := _why_no_name(net.name):
        raise InputError(f"{path}:{text.places.line_of('name')}: name {reason}")
    for spec in layers:
        _check(spec)
        if net.force_backward:  # Caffe then sends gradients to every bottom
            spec.message.ClearField("propagate_down")
    level = net.state.level if level is None else level
    stages, warnings = (*net.state.stage, *stages), _warnings(text, layers)
    return CaffeNetDefinition(path, net.name, layers, level, stages, warnings, net.debug_info)


def _why_no_name(name: str) -> str:
    """Empty for a name that can be logged and shown."""
    if len(name) > _MAX_NAME_LENGTH:
        return f"has {len(name)} characters; at most {_MAX_NAME_LENGTH} are allowed"
    return "" if name.isprintable() else f"{name!r} has characters that cannot be shown; write letters and digits"


def _check(spec: LayerSpec) -> None:
    message = spec.message
    for field, names in (("name", (spec.name,)), ("bottom", spec.bottoms), ("top", spec.tops)):
        if reasons := [reason for name in names if (reason := _why_no_name(name))]:
            raise spec.error(f"{field} {reasons[0]}", field)
    if spec.type not in (*DATA_TYPES, *INPUT_TYPES):
        layer_class(spec)
    if message.include and message.exclude:
        raise spec.error("has both include and exclude rules; keep one kind", "exclude")
    if message.blobs:
        raise spec.error("blobs in a prototxt are not supported; put weights into a .caffemodel", "blobs")


def _warnings(text: TextMessage, layers: Sequence[LayerSpec]) -> tuple[str, ...]:
    warnings: list[str] = []
    if text.message.layers:
        place = f"{text.path}:{text.places.line_of('layers')}"
        warnings.append(f"{place}: 'layers' is the format before 2014; read as Caffe's upgrade tools would")
    warnings += [f"{text.path}:{field.line}: {foreign_sentence(field)}" for field in text.skipped]
    for field, sentence in _NOT_IN_TRAINING.items():
        if getattr(text.message, field):
            warnings.append(f"{text.path}:{text.places.line_of(field)}: {field} {sentence}")
    for spec in layers:
        warnings += [
            f"{spec.where(field.name)}: {field.name} has no effect on a layer of type {spec.type}"
            for field, _ in spec.message.ListFields()
            if field.name.endswith("_param") and field.name not in settings_of(spec)
        ]
        warnings += data_warnings(spec)
        if spec.type == "HDF5Output":
            place = spec.where("hdf5_output_param.file_name")
            warnings.append(f"{place}: file_name is written by `samovar test --iterations 1 --out FOLDER` alone")
    return tuple(warnings)


def load_source(source: NetSource, level: int | None = None, stages: Sequence[str] = ()) -> CaffeNetDefinition:
    """The net in the state that the solver gives it; `level` and `stages` of the command line come first.
    Raises InputError as `load_net`."""
    return net_from_message(source.read(), source.level if level is None else level, (*source.stages, *stages))


def sized(
    definition: CaffeNetDefinition, phase: Phase, given: Mapping[str, Sequence[int]], batch_size: int | None
) -> tuple[CaffeNetDefinition, dict[str, Shape]]:
    """The definition with these shapes in its Input layers, and the shape of every input blob in file order.

    `given` are shapes by blob, batch first; `batch_size` replaces the first axis of the others. Raises InputError
    if a blob in `given` is not an input, and if the shapes of a data layer cannot be found.
    """
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; give at least 1")
    sources = [spec for spec in definition.in_phase(phase) if spec.type in (*DATA_TYPES, *INPUT_TYPES)]
    names = [top for spec in sources for top in spec.tops]
    for name in given:
        if name not in names:
            raise InputError(
                f"{definition.path}: a shape is given for '{name}', which is not an input of phase {phase}; "
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
    """The shapes of the layer's tops; labels follow from images."""
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
    """(N, C, H, W) of a layer's images, if the prototxt and its mean file say enough."""
    transform, images = spec.message.transform_param, spec.message.image_data_param
    size = (transform.crop_size,) * 2 if transform.crop_size else (images.new_height, images.new_width)
    channels = _num_channels(spec)
    if not all(size) or not channels:
        return None
    return (max(1, getattr(spec.message, DATA_TYPES[spec.type][0]).batch_size), channels, *size)


def _num_channels(spec: LayerSpec) -> int:
    """0 if neither the type nor the mean says it, or the mean file does not exist."""
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
    try:
        with BatchReader((data_config(spec),), spec.is_training) as reader:
            return [reader.top_shapes[top] for top in spec.tops]
    except InputError as error:
        num = 1 if spec.type != "HDF5Data" else None
        tops = ", ".join(f"'{top}': (...)" for top in spec.tops[:num])
        flags = " ".join(f"--shape {top}=..." for top in spec.tops[:num])
        raise InputError(
            f"{error}. Without the source, give the shapes of layer '{spec.name}', batch first: "
            f"input_shapes={{{tops}}} in Python, {flags} to samovar inspect or predict"
        ) from error
