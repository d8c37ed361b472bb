"""Matrix products against double precision, into the places where they belong."""

import pytest
import torch

from samovar.model import direct
from samovar.model.direct import pointwise_convolution, product, put_product

SHAPES = [(1, 1, 1), (5, 7, 3), (16, 300, 40), (64, 33, 129)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
TYPES = [torch.float32, torch.bfloat16]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def assert_close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error <= TOLERANCE[dtype], f"{error:.2g} of the largest value"


@pytest.fixture(params=[False, True], ids=["onednn", "mkl"])
def is_by_mkl(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whichever of the two this machine's processor prefers, the other one is right, too."""
    monkeypatch.setattr(direct, "_HAS_WIDE_MKL", request.param)
    monkeypatch.setattr(direct, "_LARGE_BYTES", 10_000)
    return bool(request.param)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_products_of_plain_and_of_transposed_factors(
    is_by_mkl: bool, m: int, k: int, n: int, dtype: torch.dtype
) -> None:
    """oneDNN's bits do not depend on the factors' order in memory; MKL has a kernel for each."""
    a, b, bias = (normal(*shape, dtype=dtype) for shape in ((m, k), (n, k), (n,)))
    found = product(a, b, bias)
    assert found.dtype == dtype
    assert_close(found, a.double() @ b.double().t() + bias.double(), dtype)
    for same in (product(a, b.t().contiguous().t(), bias), product(a.t().contiguous().t(), b, bias)):
        assert_close(same, found.double(), dtype)
        assert is_by_mkl or torch.equal(same, found)


@pytest.mark.parametrize("shape", [(0, 4, 3), (4, 0, 3), (4, 3, 0)], ids=str)
def test_empty_products(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    found = product(torch.ones(m, k), torch.ones(n, k))
    assert found.shape == (m, n)
    assert not found.any()


@pytest.mark.usefixtures("is_by_mkl")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_product_is_put_where_it_belongs(dtype: torch.dtype, accumulate: bool) -> None:
    """7000 columns: several blocks of rows, the last one smaller."""
    m, k, n = 401, 6, 7000
    a, b = normal(k, m, dtype=dtype).t(), normal(k, n, dtype=dtype).t()
    out = torch.full((m, n), 3.0 if accumulate else torch.nan)
    put_product(out, a, b, accumulate)
    assert_close(out, a.double() @ b.double().t() + (3 if accumulate else 0), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("samples", [1, 3, 20])
def test_convolutions_of_single_pixels(samples: int, dtype: torch.dtype) -> None:
    x = normal(samples, 5, 4, 3, dtype=dtype).contiguous(memory_format=torch.channels_last)
    weight, bias = normal(7, 5, 1, 1, dtype=dtype), normal(7, dtype=dtype)
    found = pointwise_convolution(x, weight, bias)
    assert found.is_contiguous(memory_format=torch.channels_last)
    expected = torch.nn.functional.conv2d(x.double(), weight.double(), bias.double())
    assert_close(found, expected, dtype)
