"""Flat buffers: views, logical values, hashes, and state."""

import hashlib
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samovar.core.buffer import FlatBuffer
from samovar.core.errors import InputError
from samovar.core.layout import Layout, ParameterSpec
from samovar.core.stateful import State

SHAPES = {"conv": (4, 3, 5, 2), "fc": (6, 7), "bias": (6,), "scale": (), "none": (0, 3)}


def make_buffer(channels_last: bool, order: tuple[str, ...] = tuple(SHAPES)) -> FlatBuffer:
    """Equal logical values, whatever the storage."""
    layout = Layout.pack(ParameterSpec(n, SHAPES[n], channels_last and len(SHAPES[n]) == 4) for n in order)
    buffer = FlatBuffer.zeros(layout)
    for name, value in values().items():
        buffer.view(name).copy_(torch.from_numpy(value))
    return buffer


def values() -> dict[str, np.ndarray]:
    return {
        name: np.asarray(np.random.default_rng(k).standard_normal(shape), np.float32)
        for k, (name, shape) in enumerate(SHAPES.items())
    }


@pytest.mark.parametrize("channels_last", [False, True])
def test_views_share_memory_and_hold_logical_values(channels_last: bool) -> None:
    buffer = make_buffer(channels_last)
    for name, value in values().items():
        assert tuple(buffer.view(name).shape) == SHAPES[name]
        assert np.array_equal(buffer.view(name).numpy(), value)
        logical = buffer.logical(name)
        assert np.array_equal(logical, value)
        assert logical.flags.c_contiguous
        assert not np.shares_memory(logical, buffer.array_N)
    used = sum(value.size for value in values().values())
    assert np.count_nonzero(buffer.array_N) == used, "padding stays zero"
    buffer.array_N[:] = 3
    assert all((buffer.view(name) == 3).all() for name in SHAPES)
    buffer.view("fc").fill_(5)
    assert np.count_nonzero(buffer.array_N == 5) == 42
    assert buffer.tensor_N.data_ptr() == buffer.array_N.ctypes.data


def test_channels_last_lies_as_torch_wants_it() -> None:
    conv = make_buffer(channels_last=True).view("conv")
    assert conv.is_contiguous(memory_format=torch.channels_last)
    assert make_buffer(channels_last=False).view("conv").is_contiguous()


@given(st.tuples(*[st.integers(1, 4)] * 4))
def test_element_of_a_channels_last_view_lies_at_its_place(shape: tuple[int, int, int, int]) -> None:
    layout = Layout.pack([ParameterSpec("w", shape, channels_last=True)])
    buffer = FlatBuffer.zeros(layout)
    view = buffer.view("w")
    _, channels, height, width = shape
    view.copy_(torch.arange(view.numel(), dtype=torch.float32).view(shape))
    for o, c, h, w in np.ndindex(*shape):
        place = ((o * height + h) * width + w) * channels + c
        assert buffer.array_N[place] == ((o * channels + c) * height + h) * width + w


def test_the_hash_is_of_logical_values_in_the_order_asked_for() -> None:
    names = tuple(SHAPES)
    expected = hashlib.sha256(b"".join(values()[name].tobytes() for name in names)).hexdigest()
    for channels_last in (False, True):
        assert make_buffer(channels_last).sha256() == expected
        for order in permutations(names):
            assert make_buffer(channels_last, order).sha256(names) == expected
    other = make_buffer(channels_last=True)
    other.view("conv")[3, 2, 4, 1] += 1
    assert other.sha256(names) != expected
    assert other.sha256(names[1:]) == make_buffer(channels_last=False, order=names[1:] + names[:1]).sha256(names[1:])


@pytest.mark.parametrize("channels_last", [False, True])
def test_state_goes_around_between_storage_orders(channels_last: bool) -> None:
    state = make_buffer(channels_last).state_dict()
    assert list(state) == list(SHAPES)
    other = make_buffer(not channels_last, tuple(reversed(SHAPES)))
    other.array_N[:] = 0
    other.load_state_dict(state, "weights")
    assert other.sha256(tuple(SHAPES)) == make_buffer(channels_last).sha256()
    for value in state.values():
        assert isinstance(value, np.ndarray)
        value[...] = 9
    assert other.sha256(tuple(SHAPES)) == make_buffer(channels_last).sha256(), "a copy"


def changed(**changes: np.ndarray | None) -> State:
    state = make_buffer(channels_last=True).state_dict() | changes
    return {name: value for name, value in state.items() if value is not None}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (changed(bias=None), r"weights: missing \['bias'\], unknown \[\]; is it of another net\?"),
        (changed(more=np.zeros(3)), r"weights: missing \[\], unknown \['more'\]"),
        (changed(bias=np.ones((6, 1))), r"weights of 'bias': shape \(6, 1\), this net has \(6,\)"),
        (changed(fc=np.ones((7, 6))), r"weights of 'fc': shape \(7, 6\), this net has \(6, 7\)"),
        (changed(conv=np.ones((4, 5, 2, 3))), "weights of 'conv'"),
        (changed(scale=np.ones(1)), r"weights of 'scale': shape \(1,\), this net has \(\)"),
        ({}, "missing"),
    ],
)
def test_state_that_does_not_fit_is_refused_and_nothing_loaded(state: State, message: str) -> None:
    buffer = make_buffer(channels_last=True)
    buffer.array_N[:] = 0
    with pytest.raises(InputError, match=message):
        buffer.load_state_dict(state, "weights")
    assert not buffer.array_N.any()
