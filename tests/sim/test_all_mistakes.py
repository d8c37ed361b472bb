"""The list of planted mistakes; each one has a test of its own, where it is planted."""

from collections import Counter
from pathlib import Path

from tests.sim.all_mistakes import CHECKS

OF_STRATEGIES_MEMBERSHIP_AND_BOX = ("steps", "centers", "mapped", "runs", "sessions", "elastic", "box")


def test_there_are_many_in_every_room() -> None:
    rooms = Counter(name.partition(": ")[0] for name in CHECKS)
    assert sum(rooms.values()) >= 100
    assert all(rooms[room] >= 2 for room in OF_STRATEGIES_MEMBERSHIP_AND_BOX), rooms
    assert sum(rooms[room] for room in OF_STRATEGIES_MEMBERSHIP_AND_BOX) >= 80


def test_the_page_tells_their_number(repository_root: Path) -> None:
    page = (repository_root / "docs" / "explanation" / "simulator.md").read_text()
    assert f"\n{len(CHECKS)} of {len(CHECKS)} planted mistakes caught\n" in page
