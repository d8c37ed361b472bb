"""When factors take less of a host's time than a gradient, by nominal figures; and what a resumed run keeps of that."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from samovar.collectives.engine import PlannedCollectives
from samovar.core.clock import Deadline
from samovar.core.layout import Layout, ParameterSpec
from samovar.core.stateful import State
from samovar.frontends.torch import factors as choosing
from samovar.frontends.torch.factors import ScaledProduct
from samovar.model import direct
from samovar.strategies.factors import Arithmetic, Factoring, Links
from samovar.strategies.traits import AUTO
from samovar.transports.base import Region, Transport
from tests.threads import on_threads

LAYOUT = Layout.pack([ParameterSpec("matrix", (32, 48))])
ROWS = 2


@pytest.mark.parametrize(
    ("rows", "saved_bytes"),
    [(16, 4 * (1536 * 384 - 16 * 1920)), (307, 4 * (1536 * 384 - 307 * 1920)), (308, 4 * (1536 * 384 - 308 * 1920))],
)
def test_what_factors_save_between_two_hosts(rows: int, saved_bytes: int) -> None:
    """1.8 ns a byte: the link's 0.8 and TCP's 1. From 308 rows on, factors of 1536 x 384 are more than the gradient."""
    saved_s = Links(2, 1).saved_s(1536 * 384, ScaledProduct().row_sizes((1536, 384), ()), rows)
    assert saved_s == pytest.approx(1.8e-9 * saved_bytes)
    assert (saved_s > 0) == (rows <= 307)


def resumed(ways: tuple[float, float], state: State, transport: Transport) -> tuple[State, list[str], list[bytes]]:
    """Two steps of a rank that makes products in its own way: the state then, what was told, and the sums."""
    rank, told = transport.group.rank, []
    size = LAYOUT.num_elements
    gradients = Region.of(transport.open_window("gradients", 4 * size, 0), 0, size, np.float32)
    collectives, links = PlannedCollectives(transport, lambda _num_bytes: "tree"), Links(2, 1)
    arithmetic, deadline = Arithmetic((ways[rank],), 1), partial(Deadline.after, 30.0)
    factoring = Factoring(collectives, AUTO, links, arithmetic, deadline, told.append)
    factored = factoring.add(LAYOUT.buckets()[0], gradients, ScaledProduct(), 1.0)
    factoring.load_state_dict(state)
    sums = []
    for step in range(2):
        left, right = (np.random.default_rng([rank, step, n]).random((ROWS, n), np.float32) for n in (32, 48))
        if factored.expect(ROWS):
            for place, factor in zip(factored.places(0, ROWS), (left, right), strict=True):
                place[:] = factor
        else:
            factored.gradient[:] = left.T @ right
        factored.run(deadline())
        factoring.stepped()
        sums.append(factored.gradient.tobytes())
    return factoring.state_dict(), told, sums


@pytest.mark.parametrize(("second_way", "capacity"), [(1.0, ROWS), (2.0, 0)])
def test_a_resumed_run_sends_factors_only_if_its_ranks_still_make_products_in_one_way(
    second_way: float, capacity: int
) -> None:
    """It may continue on other hosts. Products of other processors differ by roundings, and so would the weights."""
    saved: State = {"factors/0": ROWS}
    found = on_threads(2, partial(resumed, (1.0, second_way), saved))
    for state, told, sums in found:
        assert state == {"factors/0": capacity}
        assert sums == found[0][2]
        assert [sentence.partition(":")[0] for sentence in told] == (["gradients travel whole"] if not capacity else [])


CONVOLUTIONS = (
    (nn.Conv1d(4, 6, 3), (9,)),
    (nn.Conv1d(4, 6, 3, stride=2, padding=1), (9,)),
    (nn.Conv2d(4, 6, (3, 2), stride=(1, 3), padding=(2, 0), dilation=(2, 1), groups=2), (8, 7)),
    (nn.Conv3d(2, 4, (1, 2, 3), padding=1), (3, 4, 5)),
)


@pytest.mark.parametrize(("num_samples", "columns_bytes"), [(5, 1 << 20), (5, 1500), (1, 1 << 20)])
@pytest.mark.parametrize(("layer", "size"), CONVOLUTIONS)
@pytest.mark.parametrize("has_onednn", [True, False])
def test_a_kernel_s_gradient_is_the_product_of_its_samples_on_all_ranks(
    layer: nn.Conv2d,
    size: tuple[int, ...],
    num_samples: int,
    columns_bytes: int,
    has_onednn: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By either library, also inside the user's autocast, which rounds what PyTorch multiplies itself."""
    monkeypatch.setattr(choosing, "_COLUMNS_BYTES", columns_bytes)
    monkeypatch.setattr(direct, "_HAS_ONEDNN", has_onednn)
    x = torch.randn(num_samples, layer.in_channels, *size)
    y = layer(x)
    dy = torch.randn_like(y)
    (wanted,) = torch.autograd.grad(y, layer.weight, dy)
    moves = (layer.stride, layer.padding, layer.dilation)
    geometry = (*size, *(int(step) for steps in moves for step in steps), layer.groups)
    row = ScaledProduct().row_sizes(tuple(layer.weight.shape), geometry)
    assert (row.left, row.right) == (dy[0].numel(), x[0].numel())
    assert row.multiply_adds == layer.weight.numel() * y[0, 0].numel()
    found = np.empty(layer.weight.shape, np.float32)
    left, right = (images.movedim(1, -1).flatten(1).numpy() for images in (dy, x))
    with torch.autocast("cpu", torch.bfloat16):
        ScaledProduct().multiply(left, right, 0.5, found, geometry)
    np.testing.assert_allclose(found, 0.5 * wanted.numpy(), rtol=1e-4, atol=1e-5)
    ScaledProduct().multiply(left[:0], right[:0], 0.5, found, geometry)
    assert not found.any()  # of no samples
