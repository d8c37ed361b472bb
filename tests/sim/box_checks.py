"""Checks of a box when all its members have ended: each change made once, no promised one missing."""

from collections.abc import Sequence
from typing import Protocol

from samovar.box.board import Member
from tests.unit.box.numpy_host import NumpyBoard, NumpyCenter


class Past(Protocol):
    """The record of a member: updates that were acknowledged, its requests to the board, and their answers."""

    member: Member
    acknowledged: list[int]
    asked: list[tuple[object, ...]]
    changed: list[tuple[object, ...]]
    claimed: list[tuple[int, int]]


def check_updates(center: NumpyCenter, clients: Sequence[Past]) -> None:
    seen = [(member, sequence, chunk) for member, sequence, chunk, _ in center.log]
    applied = set(seen)
    assert len(seen) == len(applied), "an update was applied twice"
    for client in clients:
        for sequence in client.acknowledged:
            for chunk in range(center.shape.num_chunks):
                assert (client.member, sequence, chunk) in applied, "an acknowledged update is not there"


def check_board(board: NumpyBoard, clients: Sequence[Past]) -> None:
    """Check that each change of a member was made once, in order, and that each acknowledged one exists."""
    assert len(board.changes) == len(set(board.changes)), "a change of the board was made twice"
    for client in clients:
        asked = set(client.asked)
        own = [change for change in board.changes if change in asked]
        made = set(own)
        assert own == [change for change in client.asked if change in made], "changes in another order"
        assert set(client.changed) <= set(own), "an acknowledged change is not there"
        for index, said in client.claimed:
            assert said == board.words[index], "a claim was told another value"
