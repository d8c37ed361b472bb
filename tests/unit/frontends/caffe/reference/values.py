"""Layers that work value by value, and those with a factor or term for each channel."""

import numpy as np

from tests.unit.frontends.caffe.reference.case import Array, Case, Draw


def absval(draw: Draw) -> Case:
    return Case("AbsVal", "", [draw.values(*draw.shape(), away=[0])], lambda x: [np.abs(x)])


def bnll(draw: Draw) -> Case:
    x = draw.values(*draw.shape(), scale=draw.one_of(1.0, 10.0))
    return Case("BNLL", "", [x], lambda x: [np.logaddexp(0, x)])


def clip(draw: Draw) -> Case:
    least, most = draw.number(-2, 0), draw.number(0.2, 2)
    x = draw.values(*draw.shape(), away=[least, most])
    return Case("Clip", f"clip_param {{ min: {least} max: {most} }}", [x], lambda x: [np.clip(x, least, most)])


def elu(draw: Draw) -> Case:
    alpha = draw.number(0.1, 2)
    return Case(
        "ELU",
        f"elu_param {{ alpha: {alpha} }}",
        [draw.values(*draw.shape(), away=[0])],
        lambda x: [np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))],
    )


def exp(draw: Draw) -> Case:
    base, scale, shift = draw.one_of(-1.0, 2.0, 0.5), draw.number(-2, 2), draw.number(-1, 1)
    e = np.e if base == -1 else base
    return Case(
        "Exp",
        f"exp_param {{ base: {base} scale: {scale} shift: {shift} }}",
        [draw.values(*draw.shape())],
        lambda x: [e ** (shift + scale * x)],
    )


def log(draw: Draw) -> Case:
    base, scale, shift = draw.one_of(-1.0, 10.0, 0.5), draw.number(0.5, 2), draw.number(0, 1)
    e = np.e if base == -1 else base
    return Case(
        "Log",
        f"log_param {{ base: {base} scale: {scale} shift: {shift} }}",
        [draw.values(*draw.shape(), least=0.2)],
        lambda x: [np.log(shift + scale * x) / np.log(e)],
    )


def power(draw: Draw) -> Case:
    exponent, scale, shift = draw.one_of(0.0, 1.0, 2.0, 3.0, 0.5, -1.5), draw.number(0, 2), draw.number(0.2, 1)
    return Case(
        "Power",
        f"power_param {{ power: {exponent} scale: {scale} shift: {shift} }}",
        [draw.values(*draw.shape(), least=0.1)],
        lambda x: [(shift + scale * x) ** exponent],
    )


def relu(draw: Draw) -> Case:
    slope = draw.one_of(0.0, 0.1, 0.5)
    return Case(
        "ReLU",
        f"relu_param {{ negative_slope: {slope} }}",
        [draw.values(*draw.shape(), away=[0])],
        lambda x: [np.where(x > 0, x, slope * x)],
    )


def prelu(draw: Draw) -> Case:
    shape, is_shared = draw.shape(2), draw.one_of(True, False)
    slopes = draw.values(*(() if is_shared else (shape[1],)))

    def reference(x: Array, a: Array) -> list[Array]:
        a = a.reshape((1, -1) + (1,) * (x.ndim - 2))
        return [np.where(x > 0, x, a * x)]

    settings = f"prelu_param {{ channel_shared: {str(is_shared).lower()} }}"
    return Case("PReLU", settings, [draw.values(*shape, away=[0])], reference, [slopes])


def sigmoid(draw: Draw) -> Case:
    return Case("Sigmoid", "", [draw.values(*draw.shape())], lambda x: [1 / (1 + np.exp(-x))])


def swish(draw: Draw) -> Case:
    beta = draw.one_of(1.0, 0.5, -2.0)
    x = draw.values(*draw.shape())
    return Case("Swish", f"swish_param {{ beta: {beta} }}", [x], lambda x: [x / (1 + np.exp(-beta * x))])


def tanh(draw: Draw) -> Case:
    return Case("TanH", "", [draw.values(*draw.shape())], lambda x: [np.tanh(x)])


def threshold(draw: Draw) -> Case:
    at = draw.number(-1, 1)
    x = draw.values(*draw.shape(), away=[at])
    settings = f"threshold_param {{ threshold: {at} }}"
    return Case("Threshold", settings, [x], lambda x: [(x > at) * 1.0], has_gradient=False)


def dropout_in_test(draw: Draw) -> Case:
    return Case("Dropout", "", [draw.values(*draw.shape())], lambda x: [x], phase="TEST")


def softmax(draw: Draw) -> Case:
    shape = draw.shape()
    axis = draw.axis(shape)

    def reference(x: Array) -> list[Array]:
        powers = np.exp(x - x.max(axis, keepdims=True))
        return [powers / powers.sum(axis, keepdims=True)]

    return Case("Softmax", f"softmax_param {{ axis: {axis} }}", [draw.values(*shape, scale=3)], reference)


def scale(draw: Draw) -> Case:
    return _broadcast(draw, "Scale", draw.one_of(True, False))


def bias(draw: Draw) -> Case:
    return _broadcast(draw, "Bias", False)


def _broadcast(draw: Draw, kind: str, with_bias: bool) -> Case:
    shape = draw.shape(2)
    axis = draw.axis(shape)
    start = axis % len(shape)
    num_axes = draw.integer(-1, len(shape) - start)
    if num_axes == 0:
        start = 0
    operand_shape = shape[start:] if num_axes == -1 else shape[start : start + num_axes]
    two_bottoms = draw.one_of(True, False) and len(operand_shape) > 0
    name = kind.lower()

    def reference(x: Array, first: Array, second: Array | None = None) -> list[Array]:
        tail = (1,) * (x.ndim - start - first.ndim)
        first = first.reshape(first.shape + tail)
        if kind == "Bias":
            return [x + first]
        return [x * first + (0 if second is None else second.reshape(first.shape))]

    operand = draw.values(*operand_shape)
    biases = [draw.values(*operand_shape)] if with_bias else []
    settings = f"{name}_param {{ axis: {axis} num_axes: {num_axes} " + ("bias_term: true }" if with_bias else "}")
    x = draw.values(*shape)
    if two_bottoms:
        return Case(kind, settings, [x, operand], reference, biases)
    return Case(kind, settings, [x], reference, [operand, *biases])


CASES = {
    f.__name__: f
    for f in (
        *(absval, bnll, clip, elu, exp, log, power, relu, prelu, sigmoid, swish, tanh, threshold, dropout_in_test),
        *(softmax, scale, bias),
    )
}
