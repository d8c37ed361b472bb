"""When factors take less of a host's time than a gradient, by nominal figures."""

import pytest

from samovar.strategies.factors import Links


@pytest.mark.parametrize(
    ("rows", "saved_bytes"),
    [(16, 4 * (1536 * 384 - 16 * 1920)), (307, 4 * (1536 * 384 - 307 * 1920)), (308, 4 * (1536 * 384 - 308 * 1920))],
)
def test_what_factors_save_between_two_hosts(rows: int, saved_bytes: int) -> None:
    """1.8 ns a byte: the link's 0.8 and TCP's 1. From 308 rows on, factors of 1536 x 384 are more than the gradient."""
    saved_s = Links(2, 1).saved_s((1536, 384), rows)
    assert saved_s == pytest.approx(1.8e-9 * saved_bytes)
    assert (saved_s > 0) == (rows <= 307)
