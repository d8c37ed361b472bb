"""--hold-data: memory that is not there is refused before any is taken."""

from typing import cast

import pytest

from samovar.core import host
from samovar.core.errors import InputError
from samovar.data.reader import BatchReader
from samovar.training.context import RankContext
from samovar.training.opening import hold_training_set, require_memory


@pytest.mark.parametrize(
    ("available_bytes", "limit_bytes", "fits"),
    [(8e9, None, True), (7e9, None, False), (64e9, 7e9, False), (8e9, 64e9, True), (7e9, 64e9, False)],
)
def test_memory_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, available_bytes: float, limit_bytes: float | None, fits: bool
) -> None:
    """The least of what is free and what the control group still allows, and a tenth of it stays."""
    limit = None if limit_bytes is None else int(limit_bytes)
    monkeypatch.setattr(host, "text_of", lambda _path: f"MemAvailable: {int(available_bytes) >> 10} kB\n")
    monkeypatch.setattr(host, "memory_left", lambda _root: limit)
    if fits:
        require_memory(7_000_000_000)
        return
    message = r"--hold-data: the decoded records take about 7,000 MB, but 7,000 MB of memory are free, and a tenth"
    with pytest.raises(InputError, match=message):
        require_memory(7_000_000_000)


def test_a_net_without_data_layers_has_nothing_to_hold() -> None:
    context = cast("RankContext", None)  # it is not asked for anything
    message = "--hold-data: a net without data layers: there is no data to hold; leave it out"
    with BatchReader((), True) as reader, pytest.raises(InputError, match=message):
        hold_training_set(context, reader)
