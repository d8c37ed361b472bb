"""Reports in a real browser: nothing to complain of, in both colour schemes, wide and on a phone."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from samovar.report.comparison import Comparison, read_foreseen
from samovar.report.history import History
from samovar.report.page import page
from samovar.report.watching import served
from tests.browser import Browser, browser, browser_path
from tests.unit.report.run_folders import prediction, run_folder, step_lines

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser_path() is None, reason="no chromium here: apt-get install chromium"),
]

# The texts with too little contrast to the first ground below them that can be seen, as WCAG AA asks.
FAINT = """
(() => {
  const part = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const colour = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const found = colour(getComputedStyle(one).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const bad = [];
  let count = 0;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const one = texts.currentNode.parentElement, style = getComputedStyle(one);
    if (!texts.currentNode.textContent.trim() || ["STYLE", "SCRIPT", "title"].includes(one.tagName)) continue;
    count += 1;
    const own = light(colour(one.closest("svg") ? style.fill : style.color)), other = light(ground(one));
    const ratio = (Math.max(own, other) + 0.05) / (Math.min(own, other) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) bad.push([one.textContent.slice(0, 40), ratio]);
  }
  return { bad, count };
})()
"""
UNNAMED = """
[...document.querySelectorAll('[role=img], [role=region]')].filter((one) => !one.getAttribute('aria-label')).length
"""


@pytest.fixture
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("several", [False, True], ids=["one run", "several"])
def test_a_report(opened: Browser, tmp_path: Path, width: int, scheme: str, several: bool) -> None:
    runs = [("sync", 2), ("sync", 1), ("async-easgd", 2)][: 3 if several else 1]
    folders = [run_folder(tmp_path / f"{strategy} {workers}", strategy, workers) for strategy, workers in runs]
    foreseen = read_foreseen(prediction(tmp_path / "p.json")) if several else None
    path = tmp_path / "report.html"
    path.write_text(page(Comparison.of([History(folder).look() for folder in folders], foreseen)))
    opened.show(width, scheme)
    opened.open(path.as_uri())
    assert opened.value("document.documentElement.scrollWidth <= window.innerWidth")
    assert opened.value("window.innerWidth") == width
    opened.value("document.querySelectorAll('details').forEach((one) => one.open = true)")
    found = opened.value(FAINT)
    assert found["bad"] == []
    assert found["count"] > 50
    assert opened.value(UNNAMED) == 0
    dark = opened.value("getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 25)"
    assert dark == (scheme == "dark")
    opened.picture(tmp_path / "report.png")
    assert opened.complaints == []
    assert all(url.startswith("file:") for url in opened.requests)


def test_curves_by_samples(opened: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(Comparison.of([History(run_folder(tmp_path / "run")).look()], None)))
    opened.open(path.as_uri())
    seen = "[...document.querySelectorAll('.by-time, .by-samples')].map((one) => one.offsetHeight > 0)"
    assert opened.value(seen) == [True, False]
    opened.value("document.querySelector('label[for=by-samples]').click()")
    assert opened.value(seen) == [False, True]


def test_a_page_that_follows_its_run(opened: Browser, tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 20)
    with served(History(tmp_path), "127.0.0.1", 0) as url:
        opened.open(url)
        opened.value("document.getElementById('by-samples').click()")
        step_lines(tmp_path, 21, 30)
        opened.wait("document.querySelector('h1').textContent.includes('step 30')")
        assert opened.value("document.getElementById('by-samples').checked")
        assert opened.complaints == []
        assert set(opened.requests) == {url}
    opened.wait("document.body.classList.contains('lost')")


def test_a_page_outlives_a_file_that_cannot_be_read(opened: Browser, tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 20)
    config = tmp_path / "config.json"
    with served(History(tmp_path), "127.0.0.1", 0) as url:
        opened.open(url)
        config.write_text("no configuration")
        opened.wait("document.body.classList.contains('lost')")
        assert "step 20" in opened.value("document.querySelector('h1').textContent")
        config.unlink()
        step_lines(tmp_path, 21, 30)
        opened.wait("document.querySelector('h1').textContent.includes('step 30')")
        assert not opened.value("document.body.classList.contains('lost')")


def test_a_page_whose_watch_does_not_answer_says_so(opened: Browser, tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 20)
    goes_on = threading.Event()
    goes_on.set()

    class Stopped(History):
        def look(self) -> History:
            assert goes_on.wait(60.0)
            return super().look()

    with served(Stopped(tmp_path), "127.0.0.1", 0) as url:
        opened.open(url)
        goes_on.clear()
        opened.wait("document.body.classList.contains('lost')")
        goes_on.set()
        opened.wait("!document.body.classList.contains('lost')")
