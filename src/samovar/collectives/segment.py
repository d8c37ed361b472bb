"""Segmentation: one segment moves while another is reduced."""

from collections.abc import Iterator, Sequence
from functools import partial

from samovar.collectives.plan import Operation, PlanFunction, Wait
from samovar.collectives.two_level import ChunkPlace, NestedPlan, Span, as_nested


def segmented(function: PlanFunction, num_segments: int) -> PlanFunction:
    """The plan function that runs `function`'s plan on `num_segments` segments of every chunk as a pipeline.

    Each segment has chunks, stagings and slots of its own, so the segments are independent collectives. A rank's
    operations fall into stages, each some waits and what follows them up to the next wait; a rank runs a stage for
    one segment after the other before it goes on. So while it reduces a segment its peers put the next one.

    Order: every element is added in the order of its chunk, as without segments. Where all chunks are of one
    size, the segments divide each chunk and its bounds stay, so every bit does. Where they are nested (halving-
    doubling, two-level), the segments divide the largest and each is divided as the whole was: with segment s
    of S, cell j of C is [(s*C+j)*N//(S*C), (s*C+j+1)*N//(S*C)). Bits may then differ only where the order depends on
    the chunk (two-level with a ring between hosts).

    Cost: the same bytes in S times as many messages; at most S times as many steps.
    Deadlock: none, where the plan has none: take any order of all ranks' stages in which the plan could run, and
    repeat each stage for all segments; every wait then follows its message.
    Reuse: as in the plan; what protects a place there is done for each segment in the same order.

    Reference: Pjesivac-Grbovic et al., Performance analysis of MPI collective operations, 2007 (segmentation).
    """
    return partial(_segmented_plan, function, num_segments)


def _segmented_plan(function: PlanFunction, num_segments: int, rank: int, world_size: int) -> NestedPlan:
    plan = as_nested(function(rank, world_size))
    block = max(count for _, count in plan.spans)
    segments = range(num_segments)
    places = [ChunkPlace(s * plan.num_chunks, s * plan.num_stagings, s * plan.num_slots) for s in segments]
    return NestedPlan(
        name=f"{plan.name} in {num_segments} segments",
        operations=tuple(
            place.moved(operation) for stage in _stages(plan.operations) for place in places for operation in stage
        ),
        num_chunks=num_segments * plan.num_chunks,
        num_stagings=num_segments * plan.num_stagings,
        num_slots=num_segments * plan.num_slots,
        num_cells=num_segments * plan.num_cells,
        spans=tuple(_segment(span, block, num_segments, s) for s in segments for span in plan.spans),
    )


def _stages(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    """Waits and what follows them, up to the next wait."""
    stage: list[Operation] = []
    for operation in operations:
        if isinstance(operation, Wait) and stage and not isinstance(stage[-1], Wait):
            yield stage
            stage = []
        stage.append(operation)
    yield stage


def _segment(span: Span, block: int, num_segments: int, segment: int) -> Span:
    """The cells of `span` in one segment of the block of cells that it lies in."""
    first, count = span
    number, offset = divmod(first, block)
    assert offset + count <= block, span
    return (number * num_segments + segment) * block + offset, count
