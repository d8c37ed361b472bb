"""The ranks that update each part, if the command line does not say; solver and plan may decide."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.config import RunConfig
from samovar.core.errors import InputError
from samovar.frontends.caffe.solver import CaffeSolver, load_solver
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved
from samovar.training.memory import divided, possible


@pytest.fixture
def caffe(repository_root: Path) -> CaffeSolver:
    return load_solver(repository_root / "examples/lenet/digits_solver.prototxt")


def owner_of(caffe: CaffeSolver, collective: str, workers: int = 2, **settings: Any) -> str | None:
    strategy, _ = possible(resolved(StrategyConfig(**settings), workers), caffe)
    return divided(RunConfig("train", Path("s"), workers=workers), strategy, caffe, collective, False).owner


@pytest.mark.parametrize(
    ("collective", "workers", "settings", "owner"),
    [
        ("direct", 2, {}, "parts"),
        ("direct", 5, {"overlap": "none", "bucket_size_bytes": 1}, "parts"),
        ("direct", 1, {}, "all"),
        ("ring", 2, {}, "all"),
        ("tree", 2, {}, "all"),
        ("ring", 2, {"owner": "parts"}, "parts"),
        ("direct", 2, {"owner": "all"}, "all"),
        ("direct", 2, {"compress": "bf16"}, None),
        ("direct", 2, {"overlap": "backward", "bucket_size_bytes": 1}, None),
        ("direct", 2, {"overlap": "full", "bucket_size_bytes": 1}, "spread"),
        ("direct", 2, {"name": "sync-easgd"}, None),
    ],
)
def test_updates_are_divided_where_sums_are_made_where_they_lie(
    caffe: CaffeSolver, collective: str, workers: int, settings: dict[str, Any], owner: str | None
) -> None:
    assert owner_of(caffe, collective, workers, **settings) == owner


def test_gradients_that_are_added_up_do_not_travel_as_factors(caffe: CaffeSolver) -> None:
    wanted = resolved(StrategyConfig(factors="always"), 2)
    assert possible(wanted, replace(caffe, iter_size=1)) == (wanted, ())
    settings, (notice,) = possible(wanted, replace(caffe, iter_size=2))
    assert not settings.takes_factors
    assert notice.startswith("--factors always: iter_size 2 adds up")


@pytest.mark.parametrize(
    ("asked", "settings", "instead", "fields"),
    [
        ("--owner parts", {"owner": "parts"}, "--owner all", {"owner": "all"}),
        (
            "--overlap full",
            {"overlap": "full", "bucket_size_bytes": 1},
            "--overlap backward",
            {"overlap": "backward", "owner": None},
        ),
    ],
)
def test_clipping_needs_the_whole_gradient(
    caffe: CaffeSolver, asked: str, settings: dict[str, Any], instead: str, fields: dict[str, Any]
) -> None:
    clipping = replace(caffe, clip_gradients=1.0)
    wanted = resolved(StrategyConfig(**settings), 2)
    assert possible(wanted, caffe) == (wanted, ())
    strategy, notices = possible(wanted, clipping)
    assert strategy == replace(wanted, **fields)
    assert notices == (
        f"{asked}: clip_gradients needs the norm of the whole gradient before the update; so every rank "
        f"updates everything, as with {instead}",
    )


def test_clipping_leaves_updates_whole(caffe: CaffeSolver) -> None:
    assert owner_of(replace(caffe, clip_gradients=1.0), "direct") is None


def test_plans_that_make_whole_sums_are_refused(caffe: CaffeSolver) -> None:
    message = "--owner parts: tree makes no sums in parts; choose --collective direct or ring, or --owner all"
    with pytest.raises(InputError, match=message):
        owner_of(caffe, "tree", owner="parts")
