"""A net's prototxt: its layers, and which of them belong to a phase."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samovar.core.errors import InputError
from samovar.data.config import DataConfig
from samovar.formats.caffe.schema import Message
from samovar.formats.caffe.text import TextMessage, read_text
from samovar.frontends.caffe.data import data_config, data_warnings
from samovar.frontends.caffe.layers.registry import DATA_TYPE, INPUT_TYPE, layer_class, settings_of
from samovar.frontends.caffe.spec import PHASES, LayerSpec, Phase
from samovar.frontends.caffe.upgrade import layers_of


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
        return tuple(replace(spec, phase=phase) for spec in self.layers if self._is_included(spec, phase))

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
            (not rule.HasField("phase") or rule.phase == PHASES[phase])
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
    layers = tuple(LayerSpec(path, message, place) for message, place in layers_of(text))
    if not layers:
        raise InputError(f"{path}: has no layers; give a net's prototxt, not a solver's")
    for spec in layers:
        _check(spec)
    state = net.state
    return CaffeNetDefinition(path, net.name, layers, state.level, tuple(state.stage), _warnings(text, layers))


def _check(spec: LayerSpec) -> None:
    message = spec.message
    if spec.type not in (DATA_TYPE, INPUT_TYPE):
        layer_class(spec)
    if message.include and message.exclude:
        raise spec.error("has both include and exclude rules; keep one kind", "exclude")
    if message.blobs:
        raise spec.error("blobs in a prototxt are not supported; put weights into a .caffemodel", "blobs")


def _warnings(text: TextMessage, layers: Sequence[LayerSpec]) -> tuple[str, ...]:
    warnings = []
    if text.message.layers:
        place = f"{text.path}:{text.places.line_of('layers')}"
        warnings.append(f"{place}: 'layers' is the format before 2014; read as Caffe's upgrade tools would")
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
