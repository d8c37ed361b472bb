"""tools/site_build.py and tools/site_check.py: what they find in a built site, and what a machine may lack."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from urllib.request import urlopen

import pytest

GOOD = """<html><head><link rel="stylesheet" href="style.css"></head>
<body id="top"><h2 id="first">First</h2><a href="b/two.html#second">two</a> <a href="#first">first</a>
<a href="https://example.org/">elsewhere</a><img src="style.css"></body></html>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / "one.html").write_text(GOOD, encoding="utf-8")
    (tmp_path / "b/two.html").write_text('<h2 id="second">Second</h2><a href="../one.html">one</a>', encoding="utf-8")
    (tmp_path / "style.css").write_text("body { background: url('data:image/png;base64,AA') }", encoding="utf-8")
    return tmp_path


def test_a_site_whose_links_lead_somewhere_is_good(load_tool: Callable[[str], ModuleType], site: Path) -> None:
    assert load_tool("site_build").problems(site) == []


@pytest.mark.parametrize(
    ("name", "before", "after", "sentence"),
    [
        ("one.html", "#second", "#third", "one.html: no such anchor: b/two.html#third"),
        ("one.html", "#first", "#frist", "one.html: no such anchor: #frist"),
        ("b/two.html", "../one", "one", "b/two.html: no such page: one.html"),
        ("one.html", 'img src="', 'img src="https://example.org/', "one.html: loads https://example.org/style.css"),
        ("one.html", 'sheet" href="', 'sheet" href="//example.org/', "one.html: loads //example.org/style.css"),
        ("style.css", "'data:image", "'https://example.org", "style.css: loads url('https://example.org/png;base64,AA"),
    ],
)
def test_what_is_wrong_with_a_site_is_found(
    load_tool: Callable[[str], ModuleType], site: Path, name: str, before: str, after: str, sentence: str
) -> None:
    text = (site / name).read_text(encoding="utf-8")
    assert before in text
    (site / name).write_text(text.replace(before, after), encoding="utf-8")
    assert load_tool("site_build").problems(site) == [sentence]


def test_a_machine_without_a_browser_is_told_so(
    load_tool: Callable[[str], ModuleType], site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site_check = load_tool("site_check")
    monkeypatch.setenv("PATH", str(site))
    assert "site_check needs node and npm and chromium" in site_check.missing(site)
    for name in ("node", "npm", "chromium"):
        (site / name).touch(mode=0o755)
    assert site_check.missing(site) == f"there is no site in {site}: make site builds it"


def test_the_site_is_served_while_it_is_checked(load_tool: Callable[[str], ModuleType], site: Path) -> None:
    with load_tool("site_check").served(site) as address, urlopen(f"{address}one.html") as answer:
        assert answer.read().decode() == GOOD
