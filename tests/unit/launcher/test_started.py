"""`samovar train` as a process of a launcher: what is refused before hosts meet."""

import pytest

from samovar.core.errors import InputError
from samovar.launcher.started import as_started


def test_a_launcher_that_does_not_tell_its_hosts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PMI_RANK": "0", "PMI_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="set MASTER_ADDR to the host of rank 0"):
        as_started(1, None, None, 1.0, lambda _workers, _place: None)
