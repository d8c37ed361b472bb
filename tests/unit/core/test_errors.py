"""An error's text is one printable line, for any content."""

import pytest

from samovar.core.errors import DeadlineExceeded, InputError, SamovarError


@pytest.mark.parametrize("kind", [SamovarError, InputError, DeadlineExceeded])
def test_one_line_that_a_terminal_can_show(kind: type[SamovarError]) -> None:
    error = kind("net.prototxt:3: layer 'a\nb\r\x1b[2J\x00\udcff\u202e': é 猫")

    assert str(error) == "net.prototxt:3: layer 'a\\nb\\r\\x1b[2J\\x00\\udcff\\u202e': é 猫"


def test_of_a_long_text_the_ends_are_kept() -> None:
    text = str(InputError("start " + 10_000_000 * "x" + " end"))

    assert len(text) < 1010
    assert text.startswith("start x")
    assert text.endswith("x end")
    assert " [...] " in text


def test_a_plain_text_stays_as_it_is() -> None:
    assert str(InputError("--workers: got 0; give at least 1")) == "--workers: got 0; give at least 1"
