"""`make pictures`: what a picture shows is what the run did, the files are today's, and two makings are equal."""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

from samovar.strategies.catalog import STRATEGIES

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawing(repository_root: Path) -> ModuleType:
    sys.path.insert(0, str(repository_root / "tools"))
    try:
        import drawing.rooms
        import drawing.timelines
    finally:
        sys.path.pop(0)
    return drawing


@pytest.fixture(scope="module")
def pictures(load_tool) -> ModuleType:
    return load_tool("pictures")


def seconds(drawing: ModuleType, name: str, kind: str, panel: int = 0) -> list[float]:
    """How long each worker did this in the run that the picture shows."""
    lines = drawing.timelines
    workers = lines.run(lines.STRATEGIES[name][panel].setting, lines.CLUSTER, lines.NUM_STEPS)
    return [worker.seconds(kind, lines.UNTIL_S) for worker in workers]


def test_in_step_the_fast_workers_wait_for_the_slow_one_and_make_as_many_steps(drawing: ModuleType) -> None:
    lines = drawing.timelines
    workers = lines.run(lines.STRATEGIES["sync"][0].setting, lines.CLUSTER, lines.NUM_STEPS)
    waited = [worker.seconds("wait") for worker in workers]
    slow_s = lines.CLUSTER.step_s * lines.NUM_STEPS
    assert waited[0] > 0.3 * slow_s, "worker 3 takes half a step more"
    assert waited[3] < 0.7 * waited[0]
    assert len({worker.steps_until(lines.UNTIL_S) for worker in workers}) == 1


def test_at_a_center_nobody_waits_for_the_slow_worker(drawing: ModuleType) -> None:
    lines = drawing.timelines
    workers = lines.run(lines.STRATEGIES["shm-easgd"][0].setting, lines.CLUSTER, lines.NUM_STEPS)
    assert max(worker.seconds("wait", lines.UNTIL_S) for worker in workers) < lines.CLUSTER.step_s
    assert workers[0].steps_until(lines.UNTIL_S) > 1.4 * workers[3].steps_until(lines.UNTIL_S)
    assert all(worker.during("exchange", lines.UNTIL_S, behind=True) for worker in workers[1:]), "pushes travel behind"


def test_what_is_exchanged_behind_the_computation_is_not_waited_for(drawing: ModuleType) -> None:
    plain, behind = (seconds(drawing, "sync-easgd", "exchange", panel) for panel in (0, 1))
    assert sum(behind) < 0.6 * sum(plain)


@pytest.mark.parametrize("name", STRATEGIES)
def test_spans_of_a_worker_follow_each_other_without_gaps(drawing: ModuleType, name: str) -> None:
    lines = drawing.timelines
    for worker in lines.run(lines.STRATEGIES[name][-1].setting, lines.CLUSTER, lines.NUM_STEPS):
        spans = [span for kind in ("compute", "exchange", "wait") for span in worker.during(kind, 1e9)]
        ends = [0.0, *(stop for _, stop in sorted(spans))]
        assert [start for start, _ in sorted(spans)] == pytest.approx(ends[:-1])
        assert ends[-1] == pytest.approx(worker.ends_s[-1])
        assert worker.seconds("compute") == pytest.approx(worker.computed_s)


def test_every_strategy_has_a_timeline(drawing: ModuleType) -> None:
    assert set(drawing.timelines.STRATEGIES) == set(STRATEGIES)


@pytest.mark.parametrize("name", ["sync", "shm-easgd", "rooms", "measured"])
def test_the_file_is_what_is_made_today(pictures: ModuleType, name: str) -> None:
    """Bytes are those of this machine's arithmetic: simulated times are sums of a few numbers."""
    assert pictures.PICTURES[name]() == (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_all_files_are_what_is_made_today(pictures: ModuleType) -> None:
    for name, drawn in pictures.PICTURES.items():
        assert drawn() == (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8"), name


def test_every_room_of_the_contract_has_its_words(drawing: ModuleType, repository_root: Path) -> None:
    rows = drawing.rooms.layers(repository_root)
    assert {room for row in rows for room in row} <= drawing.rooms.WORDS.keys()
    assert rows[0] == ["cli", "integrations"]
    assert "strategies" in next(row for row in rows if "solver" in row)


def test_pictures_are_small_and_tell_in_words_what_they_show(pictures: ModuleType) -> None:
    for path in pictures.FOLDER.glob("*.svg"):
        written = path.read_text(encoding="utf-8")
        assert len(written) <= pictures.MOST_BYTES
        root = ET.fromstring(written)
        assert root.find(f"{SVG}title").text
        assert len(root.find(f"{SVG}desc").text) > 40
        assert root.findall(f".//{SVG}text"), "text is text"
        assert "http" not in written.replace("http://www.w3.org/2000/svg", ""), "nothing is fetched"


def test_a_picture_that_there_is_not_is_refused(pictures: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert pictures.main(["teapot"]) == 2
    assert "no such picture: teapot" in capsys.readouterr().err
