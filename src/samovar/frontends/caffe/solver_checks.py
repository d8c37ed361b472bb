"""What can be wrong, or without effect, in a solver file; the constants of the update are checked by the solver."""

import math
from collections.abc import Callable, Iterator

from samovar.core.errors import InputError
from samovar.formats.caffe.schema import Message
from samovar.formats.caffe.text import TextMessage, nearest
from samovar.frontends.caffe.foreign import FOREIGN_FIELDS
from samovar.solver.config import TYPES
from samovar.solver.policy import POLICIES

_LEAST = {
    "max_iter": 0,
    "display": 0,
    "test_interval": 0,
    "snapshot": 0,
    "average_loss": 1,
    "iter_size": 1,
}
_NOT_SUPPORTED = {
    "net_param": "put the net into a file and name it with net",
    "train_net_param": "put the net into a file and name it with train_net",
    "test_net_param": "put the net into a file and name it with test_net",
    "train_state": "use include { phase: TRAIN } in the net",
    "test_state": "use include { phase: TEST } in the net",
    "weights": "use the flag --weights",
}
# Constants by the types, or the policies, that they belong to.
_OF_TYPES = {
    "delta": ("AdaGrad", "RMSProp", "AdaDelta", "Adam"),
    "momentum2": ("Adam",),
    "rms_decay": ("RMSProp",),
}
_OF_POLICIES = {"stepvalue": ("multistep",)}


def check_solver(text: TextMessage) -> None:
    """Raises InputError with file and line for the first thing that is missing, wrong or not supported."""
    for check in _CHECKS:
        check(text)


def solver_warnings(text: TextMessage) -> tuple[str, ...]:
    """A sentence for each field that is set but changes nothing, or not what one would expect."""
    return tuple(
        f"{text.path}:{text.places.line_of(field)}: {field} {sentence}"
        for field, sentence in (*_without_effect(text.message), *_of_others(text.message), *_foreign(text))
    )


def _error(text: TextMessage, field: str, reason: str) -> InputError:
    return InputError(f"{text.path}:{text.places.line_of(field)}: {field}: {reason}")


def _check_type(text: TextMessage) -> None:
    solver = text.message
    if solver.HasField("type") and solver.HasField("solver_type"):
        raise _error(text, "solver_type", "is the old form of type, and both are given; keep type")
    if solver.type not in TYPES:
        raise _error(text, "type", f"unknown solver '{solver.type}'; {nearest(solver.type, list(TYPES))}")


def _check_missing(text: TextMessage) -> None:
    solver = text.message
    if not solver.lr_policy:
        allowed = ", ".join(POLICIES)
        raise _error(text, "lr_policy", f'is missing; supported are {allowed}; add for example lr_policy: "fixed"')
    for field in ("base_lr", "max_iter"):
        if not solver.HasField(field):
            raise _error(text, field, "is missing; add it")


def _check_numbers(text: TextMessage) -> None:
    for field, least in _LEAST.items():
        value = getattr(text.message, field)
        if value < least:
            raise _error(text, field, f"{value}; it must be at least {least}")
    if math.isnan(text.message.clip_gradients):
        raise _error(text, "clip_gradients", "nan; it must be a number: negative for no clipping")


def _check_test(text: TextMessage) -> None:
    solver = text.message
    if len(solver.test_iter) > 1 or len(solver.test_net) > 1:
        field = "test_iter" if len(solver.test_iter) > 1 else "test_net"
        raise _error(text, field, "is given more than once; several test nets are not supported yet, keep one")
    if solver.test_net and not solver.test_iter:
        raise _error(text, "test_net", "needs test_iter, the number of test batches; add it")
    if solver.test_iter and solver.test_iter[0] < 1:
        raise _error(text, "test_iter", f"{solver.test_iter[0]}; it must be at least 1")
    if solver.test_iter and not solver.test_interval:
        raise _error(text, "test_iter", "needs test_interval, the iterations between two tests; add it")


def _check_unsupported(text: TextMessage) -> None:
    solver = text.message
    for field, advice in _NOT_SUPPORTED.items():
        value = getattr(solver, field)
        if len(value) if field in ("test_net_param", "test_state", "weights") else solver.HasField(field):
            raise _error(text, field, f"is not supported yet; {advice}")


_CHECKS: tuple[Callable[[TextMessage], None], ...] = (
    _check_type,
    _check_missing,
    _check_numbers,
    _check_test,
    _check_unsupported,
)


def _without_effect(solver: Message) -> Iterator[tuple[str, str]]:
    if solver.debug_info:
        yield "debug_info", "has no effect"
    if solver.device_id:
        yield "device_id", "has no effect; training runs on the CPU"
    if not solver.layer_wise_reduce:
        yield "layer_wise_reduce", "has no effect"
    if solver.snapshot_diff:
        yield "snapshot_diff", "has no effect; gradients are not saved"
    if not solver.snapshot_after_train:
        yield "snapshot_after_train", "has no effect; the end of a run is always saved"
    if solver.test_compute_loss:
        yield "test_compute_loss", "has no effect; a test reports its loss"
    if solver.test_interval and not solver.test_iter:
        yield "test_interval", "has no effect without test_iter"
    if solver.lr_policy in ("exp", "inv", "multistep", "step") and not solver.gamma:
        consequence = "is 0 from the first drop on" if solver.lr_policy != "inv" else "does not fall"
        yield "gamma", f"is 0, so that with lr_policy '{solver.lr_policy}' the rate {consequence}"
    if solver.lr_policy == "multistep" and not solver.stepvalue:
        yield "lr_policy", "is 'multistep' without any stepvalue, so that the rate does not fall"


def _of_others(solver: Message) -> Iterator[tuple[str, str]]:
    """Constants of another type or policy than the solver's."""
    kind = TYPES[solver.solver_type] if solver.HasField("solver_type") else solver.type
    for field, kinds in _OF_TYPES.items():
        if solver.HasField(field) and kind not in kinds:
            yield field, f"has no effect with type {kind}"
    for field, policies in _OF_POLICIES.items():
        if getattr(solver, field) and solver.lr_policy not in policies:
            yield field, f"has no effect with lr_policy '{solver.lr_policy}'"


def _foreign(text: TextMessage) -> Iterator[tuple[str, str]]:
    for field in text.places.fields:
        if field in FOREIGN_FIELDS:
            yield field, f"is a field of {FOREIGN_FIELDS[field]} that BVLC Caffe does not have; it has no effect here"
