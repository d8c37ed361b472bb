import os
import signal
import sys
from pathlib import Path
from types import FrameType

import pytest

from samovar.cli.command import load


class Ended(BaseException):
    """What a handler raises."""


def test_a_signal_waits_until_a_module_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(_number: int, _frame: FrameType | None) -> None:
        raise Ended

    source = f"import os, signal\nos.kill({os.getpid()}, signal.SIGTERM)\nis_whole = True\n"
    (tmp_path / "loaded_late.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(Ended):
            load("loaded_late")
    finally:
        signal.signal(signal.SIGTERM, before)

    assert sys.modules.pop("loaded_late").is_whole
