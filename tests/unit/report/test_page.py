"""The page of runs: what it says, and that its colours can be told from their ground and from each other."""

import gzip
import json
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
from samovar.report.comparison import Comparison, ForeseenRuns, read_foreseen
from samovar.report.console import LogFile
from samovar.report.history import History
from samovar.report.page import page
from samovar.report.result import Foreseen, read_result, write_result
from samovar.report.run_folder import RunFolder
from tests.unit.report.run_folders import BATCH, STEP_S, prediction, run_folder, step_lines

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


def page_of(*folders: Path, foreseen: ForeseenRuns | None = None, is_live: bool = False) -> str:
    return page(Comparison.of([History(folder).look() for folder in folders], foreseen), is_live=is_live)


def headings(text: str) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", text)


def verdict(text: str) -> str:
    return re.findall("<h1>(.*?)</h1>", text)[0]


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


def test_a_run_that_was_stopped_before_a_test_did_not_reach_the_accuracy_of_its_start(tmp_path: Path) -> None:
    files = RunFolder(run_folder(tmp_path / "run", steps=50))
    write_result(files.result, replace(read_result(files.result), test_accuracy=None, stopped_by="SIGINT"))
    assert "2 workers with sync trained to a loss of 0.0460 in 500 ms, at" in verdict(page_of(files.path))
    other = run_folder(tmp_path / "other", workers=1)
    assert "time to 96.67%" in page_of(other, run_folder(tmp_path / "whole"))
    assert "time to " not in page_of(files.path, other), "one of them reached none"


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
    assert '<th scope="row">2 workers with async-easgd</th><td>10.0%</td><td>60.0%</td>' in text


def test_runs_of_different_nets_are_not_set_against_each_other(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / str(workers), workers=workers) for workers in (1, 2)]
    other = RunFolder(folders[0])
    write_result(other.result, replace(read_result(other.result), net_parameters=5))
    assert verdict(page_of(*folders)).startswith("2 workers with sync is the fastest of 2 runs: 10,944 samples/s, and")
    with pytest.raises(InputError, match="the prediction is of LeNet, and a run trained another net"):
        page_of(folders[1], foreseen=read_foreseen(prediction(tmp_path / "p.json", parameters=6)))


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


def test_a_run_that_knows_its_own_prediction(tmp_path: Path) -> None:
    files = RunFolder(run_folder(tmp_path / "run"))
    own = Foreseen(
        cluster="here", net="LeNet", strategy="sync", workers=2, predicted_s=0.012, measured_s=0.01, profile="timed"
    )
    write_result(files.result, replace(read_result(files.result), foreseen=own))
    assert verdict(page_of(files.path)).endswith("at 10,944 samples/s, 20% more than predicted.")


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


def test_loops_that_count_no_samples_have_no_rate(tmp_path: Path) -> None:
    for name in ("slow", "fast"):
        (tmp_path / name).mkdir()
        step_lines(tmp_path / name, 1, 50, batch=0)
    text = page_of(tmp_path / "slow", tmp_path / "fast")
    assert verdict(text).startswith("2 runs without a rate, so none is the fastest")
    assert "samples/s" not in text
    text = page_of(tmp_path / "slow")
    assert verdict(text).endswith("are at step 50, with loss 0.0460.")
    assert "samples/s" not in text


def test_a_run_that_was_ended_by_force(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 50)
    LogFile(RunFolder(tmp_path).log).close()
    text = page_of(tmp_path)
    assert verdict(text).endswith("and 12,800 samples/s; the run was ended by force.")
    assert ">it was ended by force<" in text


def test_a_run_without_a_step(tmp_path: Path) -> None:
    RunFolder(tmp_path).config.write_text("{}")
    assert "workers have not made a step yet." in page_of(tmp_path)


def test_a_loss_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    with RunFolder(tmp_path).metrics.open("w") as file:
        file.writelines(f'{{"step": {n}, "kind": "train", "loss": "{v}"}}\n' for n, v in ((1, "NaN"), (2, "Infinity")))
    text = page_of(tmp_path)
    assert "no figures" in text
    assert not re.search(r'd="[^"]*(nan|inf)', text)


def test_a_loss_that_stays_the_same_but_for_rounding(tmp_path: Path) -> None:
    """Means of 2 and of 3 lines with this loss differ in the last bit."""
    with RunFolder(tmp_path).metrics.open("w") as file:
        file.writelines(f'{{"step": {n}, "kind": "train", "loss": 0.40309273233720366}}\n' for n in range(1, 201))
    assert "Loss" in page_of(tmp_path)


@pytest.mark.parametrize("rest", [b"", b"\xff" * 200])
def test_a_timeline_that_is_broken(tmp_path: Path, rest: bytes) -> None:
    files = RunFolder(run_folder(tmp_path / "run"))
    files.trace.write_bytes(files.trace.read_bytes()[:50] + rest)
    with pytest.raises(InputError, match=r"is not a timeline: .*; remove it, or record it again with --trace"):
        page_of(files.path)


@pytest.mark.parametrize("changed", [{"name": "step <b>"}, {"dur": "long"}, {"pid": "<script>"}, {"ts": None}])
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


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"net": "n", "cluster": "c", "predictions": []}'])
def test_a_file_that_is_not_a_prediction(tmp_path: Path, content: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"is not a prediction: .*; give a file of samovar predict --json"):
        read_foreseen(path)


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
