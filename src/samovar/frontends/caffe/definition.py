"""A net's prototxt: its layers, and which of them belong to a phase."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from samovar.core.errors import InputError
from samovar.data.config import DataConfig
from samovar.formats.caffe.schema import Message, message_class
from samovar.formats.caffe.text import Place, TextMessage, read_text
from samovar.frontends.caffe.data import data_config, data_warnings
from samovar.frontends.caffe.layers.registry import DATA_TYPE, INPUT_TYPE, layer_class, settings_of
from samovar.frontends.caffe.spec import LayerSpec

Phase: TypeAlias = Literal["TRAIN", "TEST"]
_PHASES: dict[Phase, int] = {"TRAIN": 0, "TEST": 1}


@dataclass(frozen=True, slots=True)
class CaffeNetDefinition:
    """A net as written. `warnings` name what is in the file but has no effect here."""

    path: Path
    name: str
    layers: tuple[LayerSpec, ...]
    level: int
    stages: tuple[str, ...]
    warnings: tuple[str, ...]

    def in_phase(self, phase: Phase) -> tuple[LayerSpec, ...]:
        """The layers that Caffe would build in `phase`, by their include and exclude rules."""
        return tuple(spec for spec in self.layers if self._is_included(spec, phase))

    def data_layer(self, phase: Phase) -> DataConfig:
        """What the Data layer of `phase` reads; InputError where there is none, or more than one."""
        found = [spec for spec in self.in_phase(phase) if spec.type == DATA_TYPE]
        if not found:
            raise InputError(f"{self.path}: no Data layer in phase {phase}; add one with include {{ phase: {phase} }}")
        if len(found) > 1:
            raise found[1].error(f"a second Data layer in phase {phase}, which is not supported yet; keep one")
        return data_config(found[0], training=phase == "TRAIN")

    def _is_included(self, spec: LayerSpec, phase: Phase) -> bool:
        rules = spec.message.include or spec.message.exclude
        met = any(self._meets(rule, phase) for rule in rules)
        return met if spec.message.include else not met

    def _meets(self, rule: Message, phase: Phase) -> bool:
        return (
            (not rule.HasField("phase") or rule.phase == _PHASES[phase])
            and (not rule.HasField("min_level") or self.level >= rule.min_level)
            and (not rule.HasField("max_level") or self.level <= rule.max_level)
            and all(stage in self.stages for stage in rule.stage)
            and not any(stage in self.stages for stage in rule.not_stage)
        )


def load_net(path: Path) -> CaffeNetDefinition:
    """Read a net's prototxt.

    Raises InputError with file and line where it is no net, has no layers, or a layer's type or phase rules
    cannot be used.
    """
    text = read_text(path, "NetParameter")
    net = text.message
    if net.layers:
        raise InputError(
            f"{path}:{text.places.line_of('layers')}: 'layers {{}}' is the format before 2014, which is not "
            "supported yet; convert the file with Caffe's upgrade_net_proto_text"
        )
    layers = (*_old_inputs(text), *_layers(text))
    if not layers:
        raise InputError(f"{path}: has no layers; give a net's prototxt, not a solver's")
    for spec in layers:
        _check(spec)
    state = net.state
    return CaffeNetDefinition(path, net.name, layers, state.level, tuple(state.stage), _warnings(text, layers))


def _layers(text: TextMessage) -> list[LayerSpec]:
    places = text.places.fields.get("layer", [])
    return [LayerSpec(text.path, m, place) for m, place in zip(text.message.layer, places, strict=True)]


def _old_inputs(text: TextMessage) -> list[LayerSpec]:
    """The net's own `input` fields with `input_shape` or `input_dim`, as Input layers."""
    net = text.message
    dims = list(net.input_dim)
    shapes = [list(shape.dim) for shape in net.input_shape] or [dims[i : i + 4] for i in range(0, len(dims), 4)]
    place = Place(text.places.line_of("input"))
    if len(shapes) != len(net.input) or any(len(shape) != 4 for shape in shapes if dims):
        raise InputError(
            f"{text.path}:{place.line}: {len(net.input)} inputs with {len(net.input_shape)} input_shape and "
            f"{len(dims)} input_dim; give each input its input_shape (or four input_dim)"
        )
    specs = []
    for name, shape in zip(net.input, shapes, strict=True):
        layer = message_class("LayerParameter")(name=name, type=INPUT_TYPE, top=[name])
        layer.input_param.shape.add(dim=shape)
        specs.append(LayerSpec(text.path, layer, place))
    return specs


def _check(spec: LayerSpec) -> None:
    message = spec.message
    if spec.type not in (DATA_TYPE, INPUT_TYPE):
        layer_class(spec)
    if message.include and message.exclude:
        raise spec.error("has both include and exclude rules; keep one kind", "exclude")
    if message.HasField("phase"):
        raise spec.error("phase outside of a rule has no effect; write include { phase: ... }", "phase")
    if message.blobs:
        raise spec.error("blobs in a prototxt are not supported; put weights into a .caffemodel", "blobs")


def _warnings(text: TextMessage, layers: Sequence[LayerSpec]) -> tuple[str, ...]:
    warnings = []
    for field in ("debug_info", "force_backward"):
        if getattr(text.message, field):
            warnings.append(f"{text.path}:{text.places.line_of(field)}: {field} has no effect")
    for spec in layers:
        warnings += [
            f"{spec.where(field.name)}: {field.name} has no effect on a layer of type {spec.type}"
            for field, _ in spec.message.ListFields()
            if field.name.endswith("_param") and field.name not in settings_of(spec)
        ]
        if spec.type == DATA_TYPE:
            warnings += data_warnings(spec)
    return tuple(warnings)
