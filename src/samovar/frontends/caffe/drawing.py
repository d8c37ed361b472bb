"""A net's graph in Graphviz's language."""

from collections.abc import Sequence

from samovar.frontends.caffe.definition import CaffeNetDefinition
from samovar.frontends.caffe.spec import LayerSpec, Phase, Shape, text

_COLORS = {
    "Convolution": "#f4b6b6",
    "Deconvolution": "#f4b6b6",
    "Embed": "#c3b6f4",
    "InnerProduct": "#c3b6f4",
    "Pooling": "#f4dcb6",
    "Concat": "#b6d6f4",
    "Eltwise": "#b6d6f4",
    "Slice": "#b6d6f4",
}
_LOSS_COLOR, _SOURCE_COLOR, _OTHER_COLOR = "#b6f4c0", "#dddddd", "#f6f6f6"


def dot_graph(definition: CaffeNetDefinition, phase: Phase, shapes: dict[str, Shape] | None = None) -> str:
    """The layers of `phase` as boxes, and the blobs between them as arrows, with their `shapes` where known.

    Layers that work in place stand in the box of the layer whose blob they change. Text for Graphviz's `dot`.
    """
    layers = definition.in_phase(phase)
    boxes: list[list[LayerSpec]] = []
    writers: dict[str, int] = {}  # of each blob: its box
    arrows = []
    for spec in layers:
        if spec.bottoms and spec.tops == spec.bottoms[:1] and len(spec.bottoms) == 1 and spec.bottoms[0] in writers:
            boxes[writers[spec.bottoms[0]]].append(spec)
            continue
        boxes.append([spec])
        index = len(boxes) - 1
        arrows += [_arrow(writers[blob], index, blob, shapes or {}) for blob in spec.bottoms if blob in writers]
        writers.update(dict.fromkeys(spec.tops, index))
    nodes = [_box(index, members) for index, members in enumerate(boxes)]
    title = _quoted(f"{definition.name or definition.path.name} ({phase})")
    head = [
        "digraph net {",
        f"  label={title} labelloc=t rankdir=TB;",
        '  node [shape=box style="filled,rounded" fontname="Helvetica" fontsize=11];',
        '  edge [fontname="Helvetica" fontsize=9];',
    ]
    return "\n".join([*head, *nodes, *arrows, "}", ""])


def _box(index: int, members: Sequence[LayerSpec]) -> str:
    first = members[0]
    lines = [first.name, _described(first), *(f"+ {spec.type} {spec.name}" for spec in members[1:])]
    return f"  n{index} [label={_quoted(*lines)} fillcolor={_quoted(_color(first))}];"


def _arrow(start: int, end: int, blob: str, shapes: dict[str, Shape]) -> str:
    label = _quoted(blob, text(shapes[blob])) if blob in shapes else _quoted(blob)
    return f"  n{start} -> n{end} [label={label}];"


def _color(spec: LayerSpec) -> str:
    if not spec.bottoms:
        return _SOURCE_COLOR
    if spec.type.endswith("Loss") or spec.type in ("Accuracy", "Softmax"):
        return _LOSS_COLOR
    return _COLORS.get(spec.type, _OTHER_COLOR)


def _described(spec: LayerSpec) -> str:
    """The type with what matters most of its settings: "Convolution 96, 11x11 / 4"."""
    message = spec.message
    if spec.type in ("Convolution", "Deconvolution"):
        settings = message.convolution_param
        return f"{spec.type} {settings.num_output}, {_window(settings)}"
    if spec.type == "Pooling":
        settings = message.pooling_param
        method = settings.DESCRIPTOR.fields_by_name["pool"].enum_type.values_by_number[settings.pool].name
        return f"{method} pooling, " + ("global" if settings.global_pooling else _window(settings))
    if spec.type == "InnerProduct":
        return f"InnerProduct {message.inner_product_param.num_output}"
    return spec.type


def _window(settings: object) -> str:
    kernel, stride = _size(settings, "kernel", "kernel_size"), _size(settings, "stride", "stride")
    return kernel if stride in ("", "1", "1x1") else f"{kernel} / {stride}"


def _size(settings: object, name: str, field: str) -> str:
    """A window's size or stride as written: "3", "3x5"."""
    high, wide = getattr(settings, f"{name}_h"), getattr(settings, f"{name}_w")
    if high or wide:
        return f"{high}x{wide}"
    given = getattr(settings, field)
    values = [given] if isinstance(given, int) else list(given)
    return "x".join(map(str, values * 2 if len(values) == 1 and name == "kernel" else values))


def _quoted(*lines: str) -> str:
    """One string of these lines; no character of a name can end it."""
    clean = ["".join(c if c.isprintable() else "?" for c in line) for line in lines]
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"') for line in clean]
    return '"' + "\\n".join(escaped) + '"'
