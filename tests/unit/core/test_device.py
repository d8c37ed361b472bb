"""The description of a processor."""

from pathlib import Path

from samovar.core.host import models, vendor

TOLD = "processor\t: {}\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9B45\n\n"


def test_maker_and_models(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(TOLD.format(0) + TOLD.format(1))
    assert vendor(path) == "AuthenticAMD"
    assert models(path) == ["AMD EPYC 9B45"] * 2


def test_where_nothing_is_told(tmp_path: Path) -> None:
    assert vendor(tmp_path / "cpuinfo") == ""
    assert models(tmp_path / "cpuinfo") == []
