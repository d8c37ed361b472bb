"""`samovar inspect` of nets and solvers, and the drawing of a net."""

import dataclasses
import os
import subprocess
import warnings
from collections.abc import Sequence
from pathlib import Path

from samovar.core.errors import InputError, nearest
from samovar.core.files import write_whole
from samovar.files.inspection_runs import Description, TextTable, Value
from samovar.formats.caffe.text import field_names
from samovar.frontends.caffe.costs import LayerCost, NetCost, costs, num_sequences
from samovar.frontends.caffe.definition import CaffeNetDefinition, load_net
from samovar.frontends.caffe.module import Net, load
from samovar.frontends.caffe.solver import CaffeSolver, NetSource, load_solver, solver_config
from samovar.frontends.caffe.spec import PHASES, LayerSpec, Phase, Shape, text

_NET_FIELDS = {"layer", "layers", "input"}
_DRAWINGS = ("dot", "svg", "png")
_DRAW_TIMEOUT_S = 120.0
_NUM_RATES = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """The flags of `samovar inspect`: `shapes` as written ("data=1,3,224,224")."""

    phase: str = "TEST"
    shapes: tuple[str, ...] = ()
    values: bool = False
    num_records: int = 1000
    draw: Path | None = None
    force: bool = False


def is_net(path: Path) -> bool:
    """Whether the prototxt has layers, so it is not a solver; InputError if it cannot be read."""
    return not _NET_FIELDS.isdisjoint(field_names(path))


def describe_net(path: Path, wanted: Wanted) -> Description:
    """Layers with shapes, parameters, multiply-adds and memory."""
    net, notes = _built(path, wanted)
    cost = costs(net)
    rows = [_row(layer) for layer in cost.layers]
    columns = ("layer", "type", "tops", "shape", "parameters", "multiply-adds", "bytes")
    return Description("net", _net_facts(net, cost, _batch(net, path)), [TextTable("layers", columns, rows)], notes)


def _batch(net: Net, path: Path) -> tuple[int, str, str]:
    """How many samples a batch has, or sequences, what one is called, and the batch as text."""
    if (count := num_sequences(net.caffe_net)) is not None:
        return count, "sequence", f"{count} sequences"
    own = load_net(path).own_batch_size(net.phase)
    size = next((shape[0] for shape in net.input_shapes.values() if shape), own)
    return size, "sample", f"batch {size}"


def describe_solver(path: Path) -> Description:
    """Every setting, and the learning rate on the way."""
    solver = load_solver(path)
    hidden = ("path", "warnings", "only_for_caffe", "net", "test_nets", "named_weights")
    facts: list[tuple[str, Value]] = [("file", str(path)), ("net", _of_source(solver.net))]
    for number, test in enumerate(solver.test_nets):
        facts.append((f"test net {number}", f"{_of_source(test.source)}, test_iter {test.num_batches}"))
    if solver.named_weights:
        facts.append(("weights", ", ".join(name for name, _ in solver.named_weights)))
    for field in dataclasses.fields(solver):
        value = getattr(solver, field.name)
        if field.name not in hidden and value is not None and value != ():
            facts.append((field.name, value if isinstance(value, str | int | float) else str(value)))
    notes = (*solver.warnings, *solver.only_for_caffe)
    return Description("solver", facts, [TextTable("learning rate", ("step", "rate"), _rates(solver))], notes)


def _of_source(source: NetSource) -> str:
    level = "" if source.level is None else f", level {source.level}"
    return f"{source.path}{level}" + "".join(f", stage {stage}" for stage in source.stages)


def draw_net(path: Path, wanted: Wanted) -> None:
    """Write the net's graph into `wanted.draw`; InputError for another suffix, and without Graphviz."""
    target = wanted.draw
    assert target is not None
    kind = target.suffix.lower().removeprefix(".")
    if kind not in _DRAWINGS:
        raise InputError(f"--draw {target}: the suffix is '{target.suffix}'; give .dot, .svg or .png")
    if os.path.lexists(target) and not wanted.force:
        raise InputError(f"--draw {target}: exists already; give another name, or --force to replace it")
    text = dot_graph(load_net(path), _phase(wanted), _blob_shapes(path, wanted)).encode()
    content = text if kind == "dot" else _drawn(text, kind)
    write_whole(target, content, "--draw ")


def _drawn(text: bytes, kind: str) -> bytes:
    try:
        done = subprocess.run(
            ["dot", f"-T{kind}"], input=text, capture_output=True, timeout=_DRAW_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise InputError(
            f"--draw: a .{kind} needs Graphviz, whose program 'dot' was not found; install graphviz, or give a "
            ".dot file, which is text"
        ) from None
    except subprocess.TimeoutExpired:
        raise InputError(f"--draw: Graphviz took more than {_DRAW_TIMEOUT_S:g} s; give a .dot file") from None
    if done.returncode != 0 or not done.stdout:
        raise InputError(f"--draw: Graphviz failed: {done.stderr.decode(errors='replace').strip()[:300]}")
    return done.stdout


def _blob_shapes(path: Path, wanted: Wanted) -> dict[str, Shape]:
    """The shape of every blob; empty if the inputs' shapes are unknown, because a drawing does not need them."""
    try:
        net, _ = _built(path, wanted)
    except InputError:
        if wanted.shapes:
            raise
        return {}
    return {blob: shape for layer in costs(net).layers for blob, shape in layer.tops}


def _built(path: Path, wanted: Wanted) -> tuple[Net, tuple[str, ...]]:
    shapes = dict(map(parse_shape, wanted.shapes))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net = load(path, phase=_phase(wanted), input_shapes=shapes)
    return net, tuple(str(warning.message) for warning in caught)


def _phase(wanted: Wanted) -> Phase:
    found = next((phase for phase in PHASES if phase == wanted.phase.upper()), None)
    if found is None:
        raise InputError(f"--phase {wanted.phase}: {nearest(wanted.phase, list(PHASES))}")
    return found


def parse_shape(written: str) -> tuple[str, Shape]:
    name, _, sizes = written.rpartition("=")
    try:
        shape = tuple(int(size) for size in sizes.split(","))
    except ValueError:
        shape = ()
    if not name or not shape:
        raise InputError(f"--shape {written}: give NAME=N,C,H,W, as in data=1,3,224,224")
    return name, shape


def _net_facts(net: Net, cost: NetCost, batch: tuple[int, str, str]) -> list[tuple[str, Value]]:
    batch_size, unit, batch_text = batch
    learned = sum(p.numel() for p in net.parameters() if p.requires_grad)
    return [
        ("file", str(net.caffe_net.path)),
        ("name", net.caffe_net.name),
        ("phase", net.phase),
        ("inputs", ", ".join(f"{name}: {' x '.join(map(str, shape))}" for name, shape in net.input_shapes.items())),
        ("outputs", ", ".join(net.output_names)),
        ("layers", len(net.caffe_net.steps)),
        ("parameters", cost.num_parameters),
        ("learned", learned),
        (f"multiply-adds a {unit}", cost.multiply_adds // batch_size),
        ("bytes of parameters", cost.parameter_bytes),
        (f"bytes of blobs, {batch_text}", cost.activation_bytes),
    ]


def _row(layer: LayerCost) -> tuple[Value, ...]:
    names = ", ".join(name for name, _ in layer.tops) + (" (in place)" if layer.is_in_place else "")
    shapes = ", ".join(text(shape) for _, shape in layer.tops)
    return layer.name, layer.type, names, shapes, layer.num_parameters, layer.multiply_adds, layer.activation_bytes


def _rates(solver: CaffeSolver) -> list[tuple[Value, ...]]:
    policy = solver_config(solver).policy
    last = max(0, solver.max_iter - 1)
    steps = sorted({last * part // (_NUM_RATES - 1) for part in range(_NUM_RATES)})
    return [(step, float(policy.rate(step))) for step in steps]


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
    """The layers of `phase` as boxes, and the blobs between them as arrows, with their `shapes` if known.
    Layers that work in place are in the box of the layer whose blob they change. Text for Graphviz's `dot`."""
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
    """The type with its main settings: "Convolution 96, 11x11 / 4"."""
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
