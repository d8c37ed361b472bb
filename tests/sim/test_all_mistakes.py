"""The list of planted mistakes; each one has a test of its own, where it is planted."""

from collections import Counter

from tests.sim.all_mistakes import CHECKS

OF_STRATEGIES_MEMBERSHIP_AND_BOX = ("steps", "centers", "mapped", "runs", "sessions", "elastic", "box")


def test_there_are_many_in_every_room() -> None:
    rooms = Counter(name.partition(": ")[0] for name in CHECKS)
    assert sum(rooms.values()) >= 100
    assert all(rooms[room] >= 2 for room in OF_STRATEGIES_MEMBERSHIP_AND_BOX), rooms
    assert sum(rooms[room] for room in OF_STRATEGIES_MEMBERSHIP_AND_BOX) >= 80
