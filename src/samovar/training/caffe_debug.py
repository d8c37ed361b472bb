"""`debug_info`: rank 0 tells what its layers hold, where Caffe would."""

from collections.abc import Callable, Sequence
from functools import partial

from samovar.config import RunConfig
from samovar.frontends.caffe import debug_info
from samovar.frontends.caffe.debug_info import DebugInfo
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.solver import CaffeSolver
from samovar.report.records import Valued, ValueLine
from samovar.training.build import Learner
from samovar.training.context import RankContext
from samovar.training.loop import Requests

_LINES_OF_A_RECORD = 200


def shows_values(
    context: RankContext, caffe: CaffeSolver, learner: Learner, tests: Sequence[CaffeNet]
) -> Callable[[int], Requests]:
    """What to call at each boundary between two steps, in the place of the context's.

    With the solver's debug_info, rank 0 tells the values of the training net in the iterations that are displayed, and
    those of the test nets in every pass.
    """
    if not (caffe.debug_info and context.is_first):
        return context.at_boundary
    for net in tests:
        show_values_of_test(context, net)
    watch = DebugInfo(learner.net, partial(_tell, context, False))
    learner.model.watch = watch

    def at_boundary(steps_done: int) -> Requests:
        if steps_done < caffe.max_iter:
            watch.is_on = bool(caffe.display) and steps_done % caffe.display == 0
        return context.at_boundary(steps_done)

    return at_boundary


def debug_notices(config: RunConfig, caffe: CaffeSolver) -> tuple[str, ...]:
    """That nothing is shown, where workers go at speeds of their own."""
    if not (config.strategy.is_async and caffe.debug_info):
        return ()
    return (
        f"{caffe.path}: debug_info has no effect with strategy {config.strategy.name}, whose workers step each by "
        "itself; train with --strategy sync to see values",
    )


def show_values_of_test(context: RankContext, net: CaffeNet) -> None:
    """Tell the values of every pass of a test net on rank 0."""
    if context.is_first:
        DebugInfo(net, partial(_tell, context, True))


def _tell(context: RankContext, is_test: bool, lines: Sequence[debug_info.LayerValue]) -> None:
    told = [ValueLine(kind=line.kind, text=line.text) for line in lines]
    for start in range(0, len(told), _LINES_OF_A_RECORD):
        context.writer.write(Valued(lines=tuple(told[start : start + _LINES_OF_A_RECORD]), is_test=is_test))
