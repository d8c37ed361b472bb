"""Bodies of messages survive the way unchanged; bytes that are not a body are refused."""

import json

import pytest

from samovar.box.board import Member, MemberProgress, Origin, Row
from samovar.box.buffers import BufferShape
from samovar.box.joining import Look, describe
from samovar.box.protocol import Attachment, Creation, Welcome, pack_rows, unpack_rows
from samovar.core.errors import SamovarError

SHAPE = BufferShape(10_000, max_members=4, with_velocity=True, chunk_elements=512)
PROGRESS = MemberProgress(12, 768, 1234.0, 0.5, 1.5, 4, 12, 0.1)


def test_bodies_come_back_as_they_were() -> None:
    welcome = Welcome(SHAPE, Member(3, 7), 2**62)
    assert Welcome.unpack(welcome.pack()) == welcome
    attachment = Attachment("lenet", 4242, 5, 6)
    assert Attachment.unpack(attachment.pack()) == attachment
    creation = Creation("lenet", SHAPE, 9)
    assert Creation.unpack(creation.pack()) == creation
    rows = [Row(Member(0, 5), 0, False, PROGRESS), Row(Member(1, 9), 77, True, MemberProgress(loss=1.0), "2001:db8::7")]
    assert unpack_rows(pack_rows(rows)) == rows
    for unpack in (Welcome.unpack, Attachment.unpack, Creation.unpack, unpack_rows):
        for size in (1, 7, 19, 200):
            with pytest.raises(SamovarError):
                unpack(b"\xff" * size)


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7", "fe80::1%eth0"])
def test_origins_come_back_as_they_were(address: str) -> None:
    assert Origin.unpack(Origin(address, 5).pack()) == Origin(address.partition("%")[0], 5)
    assert Origin.unpack(bytes(20)) is None


def test_what_json_cannot_hold_is_left_out() -> None:
    row = Row(Member(0, 1), 5, True, MemberProgress(samples_per_s=float("inf"), loss=float("nan")))
    text = json.dumps(describe("c", Look(SHAPE, [row], None)), allow_nan=False)
    assert json.loads(text)["members"][0]["loss"] is None
