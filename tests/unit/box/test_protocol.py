"""The box's messages: what is packed is unpacked, what does not fit is refused, each answer counts once."""

import random
from typing import Any

import numpy as np
import pytest

from samovar.box.board import PROGRESS_BYTES, Member
from samovar.box.buffers import BufferShape
from samovar.box.protocol import (
    MOST_ATTACHMENT_BYTES,
    MOST_CHUNK_BYTES,
    NOBODY,
    PART_BYTES,
    VERSION,
    Kind,
    Operation,
    Reply,
    Request,
    Status,
    elements,
    pack_name,
    parts,
    status_of,
)
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, ReplicasDiffer, SamovarError
from samovar.transports.secure import HEADER_BYTES

MEMBER = Member(3, 7)
SHAPE = BufferShape(10 * PART_BYTES // 16 + 1, chunk_elements=PART_BYTES // 16)  # 4 chunks a part, 11 chunks


def test_messages_come_back_as_they_were() -> None:
    request = Request(Kind.EXCHANGE, 2**32 - 1, MEMBER, 5, 6, 2**63 - 1, 0.25, 400)
    assert Request.unpack(request.pack().ljust(HEADER_BYTES, b"\0")) == request
    assert Request.unpack(Request(Kind.NAMES, 0).pack()).member == NOBODY
    reply = Reply.to(request, 400, lost_s=0.25)
    assert Reply.unpack(reply.pack().ljust(HEADER_BYTES, b"\0")) == reply
    assert len(request.pack()) <= HEADER_BYTES
    assert len(reply.pack()) <= HEADER_BYTES


@pytest.mark.parametrize(
    "changes",
    [
        {"rate": float("nan")},
        {"rate": float("inf")},
        {"sequence": -1},
        {"sequence": 0},
        {"kind": Kind.SET_WORD, "sequence": 0},
        {"kind": Kind.POST, "sequence": 1, "body_bytes": PROGRESS_BYTES + 1},
        {"member": Member(-2, 0)},
        {"member": Member(0, -1)},
        {"body_bytes": MOST_CHUNK_BYTES + 1},
        {"kind": Kind.ATTACH, "body_bytes": MOST_ATTACHMENT_BYTES + 1},
        {"kind": Kind.READ, "body_bytes": 1},
        {"kind": Kind.NAMES, "body_bytes": 1},
    ],
)
def test_requests_that_no_member_sends_are_refused(changes: dict[str, Any]) -> None:
    request = Request(Kind.ACCUMULATE, 1, MEMBER, sequence=1)._replace(**changes)
    with pytest.raises(SamovarError):
        Request.unpack(request.pack())


def test_noise_is_refused_or_is_a_request_within_its_bounds() -> None:
    generator, num_refused = random.Random(1), 0
    for _ in range(5000):
        header = bytearray(generator.randbytes(HEADER_BYTES))
        header[:2] = bytes([generator.randrange(20), VERSION])
        for unpack in (Request.unpack, Reply.unpack):
            try:
                assert unpack(bytes(header)).body_bytes <= MOST_CHUNK_BYTES
            except SamovarError:
                num_refused += 1
    assert num_refused > 5000


def test_a_name_of_bytes_that_are_no_text_is_asked_for_with_escapes() -> None:
    assert pack_name("\udc80") == rb"\udc80"


def test_another_version_is_named() -> None:
    header = bytearray(Request(Kind.READ, 1).pack())
    header[1] = VERSION + 1
    with pytest.raises(SamovarError, match=f"version {VERSION + 1} .* version {VERSION}"):
        Request.unpack(bytes(header))


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-1, 1), (1, 2**25), (2**41, 4)])
def test_shapes_that_no_center_has_are_refused(sizes: tuple[int, int]) -> None:
    num_elements, chunk_elements = sizes
    with pytest.raises(InputError, match="is 1 to"):
        BufferShape.of_sizes([num_elements, 64, False, True, chunk_elements, False])


@pytest.mark.parametrize(
    "sizes", [(1, 1), (1001, 7), (SHAPE.num_elements, SHAPE.chunk_elements), (10**6, 2**24), (2**20, 2**17)]
)
def test_parts_are_all_chunks_once_and_no_larger_than_said(sizes: tuple[int, int]) -> None:
    shape = BufferShape(sizes[0], chunk_elements=sizes[1])
    found = [elements(shape, first, count) for first, count in parts(shape)]
    assert [part.start for part in found] == [0, *(part.stop for part in found[:-1])]
    assert found[-1].stop == shape.num_elements
    most = max(PART_BYTES // 4, shape.chunk_elements)
    assert all(0 < part.stop - part.start <= most for part in found)
    for first, count in ((0, 0), (shape.num_chunks, 1), (-1, 1), (0, 2**31), (2**31, 1)):
        with pytest.raises(SamovarError):
            elements(shape, first, count)


def test_an_operation_is_complete_when_each_part_is_answered_in_any_order() -> None:
    operation = Operation(Kind.EXCHANGE, 4, MEMBER, SHAPE, 9, 0.5)
    requests = [request for request, _ in operation.unanswered()]
    assert [(request.first_chunk, request.num_chunks) for request in requests] == [(0, 3), (3, 3), (6, 3), (9, 2)]
    for number, request in enumerate(reversed(requests)):
        assert not operation.is_complete
        reply = Reply.to(request, request.body_bytes)
        assert operation.expected(reply) == request.elements(SHAPE)
        operation.answered(reply, np.full(request.num_chunks, number))
        assert operation.expected(reply) is None, "the same answer again"
    assert operation.is_complete
    assert operation.versions.tolist() == [3] * 3 + [2] * 3 + [1] * 3 + [0] * 2


@pytest.mark.parametrize(
    "changes", [{"call": 3}, {"sequence": 8}, {"kind": Kind.READ}, {"first_chunk": 1}, {"first_chunk": 12}]
)
def test_the_answer_to_something_else_is_none(changes: dict[str, Any]) -> None:
    operation = Operation(Kind.EXCHANGE, 4, MEMBER, SHAPE, 9, 0.5)
    request, _ = operation.unanswered()[0]
    reply = Reply.to(request, request.body_bytes)
    assert operation.expected(reply) is not None
    assert operation.expected(reply._replace(**changes)) is None


@pytest.mark.parametrize(
    "changes", [{"num_chunks": 3}, {"num_chunks": 2**32 - 1}, {"body_bytes": 0}, {"body_bytes": 2**25}]
)
def test_an_answer_of_another_size_is_refused(changes: dict[str, Any]) -> None:
    operation = Operation(Kind.READ, 4, MEMBER, SHAPE)
    request, part = operation.unanswered()[0]
    reply = Reply.to(request, 4 * (part.stop - part.start))
    with pytest.raises(SamovarError, match="READ answered by"):
        operation.expected(reply._replace(**changes))


@pytest.mark.parametrize("kind", [InputError, RankFailed, DeadlineExceeded])
def test_errors_travel_as_what_they_are(kind: type[SamovarError]) -> None:
    reply = Reply.to(Request(Kind.READ, 1), 4, status_of(kind("why")))
    error = Reply.unpack(reply.pack()).error("why")
    assert type(error) is kind
    assert str(error) == "why"
    assert status_of(ReplicasDiffer("other")) is Status.FAILED
