"""The page of runs: what it says, and that its colours can be told from their ground and from each other."""

import gzip
import json
import math
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import samovar.report
from samovar.core.errors import InputError
from samovar.report.comparison import read_foreseen
from samovar.report.console import LogFile
from samovar.report.metrics import MetricsWriter
from samovar.report.result import read_result, write_result
from samovar.report.run_folder import RunFolder
from tests.unit.report.run_folders import BATCH, STEP_S, headings, page_of, prediction, run_folder, step_lines, verdict

VOID = {"meta", "input"}


class Balanced(HTMLParser):
    """The tags, the text and the addresses of a page; fails for a tag that is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_run(tmp_path: Path) -> None:
    text = page_of(run_folder(tmp_path / "run"))
    found = Balanced(text)
    assert verdict(text) == "LeNet: 2 workers with sync reached 96.67% accuracy in 3 s, at 10,944 samples/s."
    assert "The run is straggler-bound, the others wait 20% of the time for rank 1 (see its cpus)." in text
    assert headings(text) == ["Learning", "A step", "Timeline", "Bytes", "Settings"]
    assert found.addresses == []
    assert "script" not in found.tags
    assert 'aria-label="Loss, by seconds of training. 2 workers with sync: ' in text
    assert "waiting for the exchange 3 ms" in text
    assert "2 workers with sync: step 1 to 3" in text
    assert "<td>1.72 MB</td>" in text
    assert "predicted, busiest worker" not in text


def test_a_run_that_was_stopped_before_a_test_did_not_reach_the_accuracy_of_its_start(tmp_path: Path) -> None:
    files = RunFolder(run_folder(tmp_path / "run", steps=50))
    write_result(files.result, replace(read_result(files.result), test_accuracy=None, stopped_by="SIGINT"))
    assert "2 workers with sync trained to a loss of 0.0460 in 500 ms, at" in verdict(page_of(files.path))
    other = run_folder(tmp_path / "other", workers=1)
    assert "time to 96.67%" in page_of(other, run_folder(tmp_path / "whole"))
    assert "time to " not in page_of(files.path, other), "one of them reached none"


def test_a_loop_at_a_center_shows_whose_samples_it_counts(tmp_path: Path) -> None:
    for name in ("center", "sync"):
        (tmp_path / name).mkdir()
        step_lines(tmp_path / name, 1, 50)
    with MetricsWriter(RunFolder(tmp_path / "center").metrics, 50) as metrics:
        metrics.write(50, "workers", {"steps": [50, 49], "samples_per_second": [3.0, 1.5], "is_gone": [False, False]})
    text = page_of(tmp_path / "center")
    assert "Samples per second of worker 0, by samples of worker 0. " in text
    assert "Samples per second of worker 0 in center, by samples" in page_of(tmp_path / "center", tmp_path / "sync")
    assert "worker 0," not in page_of(tmp_path / "sync")


def test_curves_have_their_figures_in_a_table(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 60)
    found = re.search(r'aria-label="Curves as a table".*?</table>', page_of(tmp_path))[0]
    rows = [re.findall("<td>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", found)[1:]]
    assert len(rows) == 12
    assert rows[-1] == ["60", "600 ms", "0.0397", "7,680", "12,800"], "means over neighbouring steps"


def test_the_lines_of_many_runs_differ(tmp_path: Path) -> None:
    folders = [tmp_path / f"{number:02}" for number in range(20)]
    for folder in folders:
        folder.mkdir()
        step_lines(folder, 1, 2)
    looks = re.findall(r"<li>(<svg.*?</svg>)", re.search('<ul class="legend">.*?</ul>', page_of(*folders))[0])
    assert len(looks) == len(set(looks)) == 20


def test_runs_next_to_a_prediction(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / name, *of) for name, of in (("1", ("sync", 1)), ("2", ("sync", 2)))]
    folders.append(run_folder(tmp_path / "a", "async-easgd", 2))
    text = page_of(*folders, foreseen=read_foreseen(prediction(tmp_path / "p.json")))
    Balanced(text)
    best = "2 workers with sync is the fastest of 3 runs: 10,944 samples/s, 1.90 times one worker"
    assert verdict(text) == f"{best}, and as accurate as the best (96.67%)."
    assert headings(text) == ["Learning", "Speed-up", "A step", "Timeline", "Staleness", "Bytes", "Settings"]
    assert "Lines are predicted, for two machines." in text
    assert "<td>-10%</td>" in text, "measured against predicted"
    assert "sync, predicted: 1 to 3.5" in text
    assert "async-easgd, measured: 1.9" in text
    assert '<th scope="col">predicted, busiest worker</th>' in text
    assert '<th scope="row">2 workers with async-easgd</th><td>10.0%</td><td>60.0%</td>' in text


def test_a_resumed_run_sent_the_bytes_of_its_own_steps(tmp_path: Path) -> None:
    files = RunFolder(run_folder(tmp_path / "run"))
    own = replace(read_result(files.result), samples=20 * 2 * BATCH, seconds=20 * STEP_S)
    write_result(files.result, own)
    assert f"<td>{1.72432 / STEP_S:.0f} MB/s</td>" in page_of(files.path)


def test_workers_that_do_not_wait_sent_the_bytes_of_their_own_steps(tmp_path: Path) -> None:
    """By the stop rule `first` the run has the steps of the fastest."""
    files = RunFolder(run_folder(tmp_path / "run", "async-easgd", steps=300))
    result = read_result(files.result)
    write_result(
        files.result, replace(result, by_worker=(result.by_worker[0], replace(result.by_worker[1], steps=100)))
    )
    assert f"<td>{1.72432 * 400:.0f} MB</td>" in page_of(files.path)


def test_names_from_files_are_only_text(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    text = page_of(run_folder(tmp_path / "run", f"sync'\"{name}", net=name))
    assert name not in text
    assert "&lt;script&gt;" in text
    assert "conv1 &amp; &lt;more&gt;" in text
    assert "script" not in Balanced(text).tags


def test_a_run_that_trains(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 50)
    text = page_of(tmp_path, is_live=True)
    assert verdict(text).endswith(": workers are at step 50, with loss 0.0460 and 12,800 samples/s.")
    assert "it trains, or has ended" in text, "without a log nothing says more"
    assert "fetch(location.href" in text


def test_a_run_that_was_ended_by_force(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 50)
    LogFile(RunFolder(tmp_path).log).close()
    text = page_of(tmp_path)
    assert verdict(text).endswith("and 12,800 samples/s; the run was ended by force.")
    assert ">it was ended by force<" in text


def test_a_run_without_a_step(tmp_path: Path) -> None:
    RunFolder(tmp_path).config.write_text("{}")
    text = page_of(tmp_path)
    assert "workers have not made a step yet." in text
    assert "Learning" not in headings(text)


def test_a_loss_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    with RunFolder(tmp_path).metrics.open("w") as file:
        file.writelines(f'{{"step": {n}, "kind": "train", "loss": "{v}"}}\n' for n, v in ((1, "NaN"), (2, "Infinity")))
    text = page_of(tmp_path)
    assert "no figures" in text
    assert not re.search(r'd="[^"]*(nan|inf)', text)


@pytest.mark.parametrize("losses", [("1", "1.7e308"), ("-1.7e308", "1.7e308"), ("5e-324", "1e300")])
def test_a_loss_at_the_edge_of_floats_does_not_keep_the_others_from_a_page(tmp_path: Path, losses: Any) -> None:
    with RunFolder(tmp_path).metrics.open("w") as file:
        file.writelines(f'{{"step": {n}, "kind": "train", "loss": {v}}}\n' for n, v in enumerate((*losses, "2"), 1))
    assert not re.search(r'd="[^"]*(nan|inf)', page_of(tmp_path))


def test_a_loss_that_stays_the_same_but_for_rounding(tmp_path: Path) -> None:
    """Means of 2 and of 3 lines with this loss differ in the last bit."""
    with RunFolder(tmp_path).metrics.open("w") as file:
        file.writelines(f'{{"step": {n}, "kind": "train", "loss": 0.40309273233720366}}\n' for n in range(1, 201))
    assert "Loss" in page_of(tmp_path)


@pytest.mark.parametrize("rest", [b"", b"\xff" * 200, None])
def test_a_timeline_that_is_broken(tmp_path: Path, rest: bytes | None) -> None:
    files = RunFolder(run_folder(tmp_path / "run"))
    is_deep = rest is None
    files.trace.write_bytes(gzip.compress(b"[" * 100_000) if is_deep else files.trace.read_bytes()[:50] + rest)
    with pytest.raises(InputError, match=r"is not a timeline: .*; remove it, or record it again with --trace"):
        page_of(files.path)


@pytest.mark.parametrize(
    "changed",
    [
        *({"name": "step <b>"}, {"name": "3"}, {"dur": "long"}, {"dur": -1.0}, {"dur": math.nan}),
        *({"pid": "<script>"}, {"ts": None}, {"ts": 10**400}),
    ],
)
def test_a_timeline_of_another_program(tmp_path: Path, changed: dict[str, Any]) -> None:
    files = RunFolder(run_folder(tmp_path / "run"))
    step = {"ph": "X", "cat": "step", "name": "step 3", "pid": 0, "tid": 1, "ts": 0.0, "dur": 1.0}
    others = [{"ph": "X", "cat": "<script>", "name": "x", "pid": "<script>", "ts": 0.0, "dur": 1.0}]
    for spans, is_good in (([step, *others], True), ([step | changed], False)):
        with gzip.open(files.trace, "wt") as file:
            json.dump({"traceEvents": spans}, file)
        os.utime(files.trace, ns=(1, 1 + is_good))
        if is_good:
            assert "<script>" not in page_of(files.path)
        else:
            with pytest.raises(InputError, match="is not a timeline: it has the span"):
                page_of(files.path)


def test_steps_that_took_no_time_have_no_timeline(tmp_path: Path) -> None:
    files = RunFolder(run_folder(tmp_path / "run"))
    step = {"ph": "X", "cat": "step", "name": "step 3", "pid": 0, "tid": 1, "ts": 1.0, "dur": 0}
    files.trace.write_bytes(gzip.compress(json.dumps({"traceEvents": [step]}).encode()))
    assert "Timeline" not in headings(page_of(files.path))


def schemes() -> list[dict[str, str]]:
    """The colours of the light and of the dark page, by name."""
    style = (Path(samovar.report.__file__).parent / "page.css").read_text()
    light, dark = (
        dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{3,6});", part)) for part in re.split("@media", style)[:2]
    )
    return [light, dark]


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_from_their_ground(scheme: int) -> None:
    colours = schemes()[scheme]
    for ground in ("ground", "card"):
        for text in ("text", "soft", "accent", "s1"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    shapes = [f"s{slot}" for slot in range(6)] + [
        "data",
        "forward",
        "backward",
        "update",
        "slower",
        "exchange",
        "in-flight",
    ]
    for shape in shapes:
        assert contrast(colours[shape], colours["card"]) >= 3, shape


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_lines_have_colours_of_their_own(scheme: int) -> None:
    colours = [schemes()[scheme][f"s{slot}"] for slot in range(6)]
    for one, other in combinations(colours, 2):
        assert one != other
