"""Layers that move, join or pick values."""

import numpy as np

from tests.unit.frontends.caffe.reference.case import Array, Case, Draw


def concat(draw: Draw) -> Case:
    shape = draw.shape()
    axis = draw.axis(shape)
    at = axis % len(shape)
    sizes = [draw.integer(1, 3) for _ in range(draw.integer(1, 3))]
    inputs = [draw.values(*shape[:at], size, *shape[at + 1 :]) for size in sizes]
    old = f"concat_dim: {at}" if draw.one_of(True, False) else f"axis: {axis}"
    return Case("Concat", f"concat_param {{ {old} }}", inputs, lambda *xs: [np.concatenate(xs, at)])


def slice_(draw: Draw) -> Case:
    shape = list(draw.shape())
    axis = draw.axis(shape)
    at, num_tops = axis % len(shape), draw.integer(1, 3)
    if draw.one_of(True, False):
        shape[at] = num_tops * draw.integer(1, 2)
        points = [shape[at] // num_tops * part for part in range(1, num_tops)]
        text = ""
    else:
        points = list(np.cumsum([draw.integer(1, 2) for _ in range(num_tops - 1)]))
        shape[at] = sum(points[-1:]) + draw.integer(1, 2) if num_tops > 1 else shape[at]
        text = " ".join(f"slice_point: {point}" for point in points)
    return Case(
        "Slice",
        f"slice_param {{ axis: {axis} {text} }}",
        [draw.values(*shape)],
        lambda x: np.split(x, points, at),
        num_tops=num_tops,
    )


def crop(draw: Draw) -> Case:
    shape = draw.shape(2, most=4)
    axis = draw.axis(shape)
    at = axis % len(shape)
    offsets = [draw.integer(0, size - 1) for size in shape[at:]]
    if draw.one_of(True, False):
        offsets = [min(offsets)] * len(offsets)
    like = [*shape[:at], *(draw.integer(1, size - offset) for size, offset in zip(shape[at:], offsets, strict=True))]
    same = len(set(offsets)) == 1
    text = " ".join(f"offset: {offset}" for offset in (offsets[:1] if same else offsets))

    def reference(x: Array, like: Array) -> list[Array]:
        for index, offset in enumerate(offsets, at):
            x = x.take(range(offset, offset + like.shape[index]), index)
        return [x]

    settings = f"crop_param {{ axis: {axis} {text} }}"
    return Case("Crop", settings, [draw.values(*shape), draw.values(*like)], reference, fixed=frozenset([1]))


def flatten(draw: Draw) -> Case:
    shape = draw.shape()
    first = draw.integer(0, len(shape) - 1)
    last = draw.integer(first, len(shape) - 1)
    end = last - len(shape) if draw.one_of(True, False) else last
    target = (*shape[:first], -1, *shape[last + 1 :])
    settings = f"flatten_param {{ axis: {first} end_axis: {end} }}"
    return Case("Flatten", settings, [draw.values(*shape)], lambda x: [x.reshape(target)])


def reshape(draw: Draw) -> Case:
    text, target = draw.one_of(
        ("shape { dim: 0 dim: -1 }", (2, 12)),
        ("shape { dim: 0 dim: 0 dim: 4 dim: 1 }", (2, 3, 4, 1)),
        ("shape { dim: -1 } axis: 1 num_axes: 2", (2, 12)),
        ("shape { dim: 1 } axis: -1 num_axes: 0", (2, 3, 4, 1)),
        ("shape { dim: 6 dim: 2 } axis: -3", (2, 6, 2)),
        ("shape { } axis: 0 num_axes: 0", (2, 3, 4)),
    )
    return Case("Reshape", f"reshape_param {{ {text} }}", [draw.values(2, 3, 4)], lambda x: [x.reshape(target)])


def tile(draw: Draw) -> Case:
    shape = draw.shape()
    axis, tiles = draw.axis(shape), draw.integer(1, 3)
    settings = f"tile_param {{ axis: {axis} tiles: {tiles} }}"
    return Case("Tile", settings, [draw.values(*shape)], lambda x: [np.concatenate([x] * tiles, axis)])


def split(draw: Draw) -> Case:
    num_tops = draw.integer(1, 3)
    return Case("Split", "", [draw.values(*draw.shape())], lambda x: [x] * num_tops, num_tops=num_tops)


def parameter(draw: Draw) -> Case:
    shape = draw.shape()
    dims = " ".join(f"dim: {size}" for size in shape)
    return Case("Parameter", f"parameter_param {{ shape {{ {dims} }} }}", [], lambda w: [w], [draw.values(*shape)])


def eltwise(draw: Draw) -> Case:
    shape, count, operation = draw.shape(), draw.integer(2, 4), draw.one_of("PROD", "SUM", "MAX")
    inputs = [draw.values(*shape) for _ in range(count)]
    if operation == "MAX":
        values = draw.distinct(count, *shape)
        inputs = list(values)
    factors = [draw.number(-2, 2) for _ in range(count)] if operation == "SUM" and draw.one_of(True, False) else []
    text = " ".join(f"coeff: {factor}" for factor in factors)

    def reference(*xs: Array) -> list[Array]:
        stacked = np.stack(xs)
        if operation == "SUM":
            return [np.tensordot(np.array(factors or [1.0] * count), stacked, 1)]
        return [stacked.prod(0) if operation == "PROD" else stacked.max(0)]

    return Case("Eltwise", f"eltwise_param {{ operation: {operation} {text} }}", inputs, reference)


def reduction(draw: Draw) -> Case:
    shape, operation, coeff = draw.shape(), draw.one_of("SUM", "ASUM", "SUMSQ", "MEAN"), draw.number(-2, 2)
    axis = draw.axis(shape)
    at = axis % len(shape)

    def reference(x: Array) -> list[Array]:
        rows = x.reshape(*x.shape[:at], -1)
        rows = {"ASUM": np.abs(rows), "SUMSQ": rows**2}.get(operation, rows)
        return [coeff * (rows.mean(-1) if operation == "MEAN" else rows.sum(-1))]

    settings = f"reduction_param {{ operation: {operation} axis: {axis} coeff: {coeff} }}"
    return Case("Reduction", settings, [draw.values(*shape, away=[0])], reference)


def argmax(draw: Draw) -> Case:
    shape = draw.shape()
    with_values = draw.one_of(True, False)
    axis = draw.one_of(None, draw.axis(shape))
    size = int(np.prod(shape[1:])) if axis is None else shape[axis]
    top_k = draw.integer(1, size)

    def best(x: Array, at: int) -> tuple[Array, Array]:
        order = np.argsort(-x, axis=at, kind="stable").take(range(top_k), at)
        return order, np.take_along_axis(x, order, at)

    def reference(x: Array) -> list[Array]:
        if axis is not None:
            return [best(x, axis)[with_values]]
        order, values = best(x.reshape(len(x), -1), 1)
        return [np.stack([order, values][: 1 + with_values], 1).reshape(len(x), -1, top_k, *(1,) * (x.ndim - 3))]

    text = "" if axis is None else f"axis: {axis}"
    settings = f"argmax_param {{ out_max_val: {str(with_values).lower()} top_k: {top_k} {text} }}"
    return Case("ArgMax", settings, [draw.distinct(*shape)], reference, has_gradient=False)


def embed(draw: Draw) -> Case:
    rows, size, with_bias = draw.integer(1, 4), draw.integer(1, 3), draw.one_of(True, False)

    def reference(x: Array, w: Array, b: Array | float = 0.0) -> list[Array]:
        return [w[x.astype(int)] + b]

    x = draw.labels(*draw.shape(1, 2), classes=rows)
    parameters = [draw.values(rows, size), draw.values(size)][: 1 + with_bias]
    settings = f"embed_param {{ input_dim: {rows} num_output: {size} bias_term: {str(with_bias).lower()} }}"
    return Case("Embed", settings, [x], reference, parameters, fixed=frozenset([0]))


CASES = {
    f.__name__.strip("_"): f
    for f in (concat, slice_, crop, flatten, reshape, tile, split, parameter, eltwise, reduction, argmax, embed)
}
