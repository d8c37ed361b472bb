"""Checks of a solver file: errors, and fields without effect. The solver checks the constants of the update."""

import math
from collections.abc import Iterator
from pathlib import Path

from samovar.core.errors import InputError, nearest
from samovar.formats.caffe.schema import Message
from samovar.formats.caffe.text import Skipped, TextMessage
from samovar.solver.policy import POLICIES, TYPES

_LEAST = {"max_iter": 0, "display": 0, "test_interval": 0, "snapshot": 0, "average_loss": 1, "iter_size": 1}
# Constants by the types, or the policies, that they belong to.
_OF_TYPES = {"delta": ("AdaGrad", "RMSProp", "AdaDelta", "Adam"), "momentum2": ("Adam",), "rms_decay": ("RMSProp",)}
_OF_POLICIES = {"stepvalue": ("multistep",), "stepsize": ("sigmoid", "step"), "power": ("inv", "poly")}
_OF_POLICIES |= {"gamma": ("exp", "inv", "multistep", "sigmoid", "step")}


def check_solver(text: TextMessage) -> None:
    """Raises InputError with file and line for the first missing, wrong or unsupported field."""
    _check_type(text)
    _check_missing(text)
    _check_numbers(text)
    _check_test(text)


def solver_warnings(text: TextMessage) -> tuple[str, ...]:
    """A sentence for each field that has no effect, or an unexpected one."""
    own = (
        f"{text.path}:{text.places.line_of(field)}: {field} {sentence}"
        for field, sentence in (*_without_effect(text.message), *_of_others(text.message), *_of_two_folders(text))
    )
    return (*own, *(f"{text.path}:{field.line}: {foreign_sentence(field)}" for field in text.skipped))


def only_for_caffe(text: TextMessage) -> tuple[str, ...]:
    """The same for fields that `samovar caffe train` follows and `samovar train` does not."""
    if text.message.snapshot_after_train:
        return ()
    field = "snapshot_after_train"
    return (f"{text.path}:{text.places.line_of(field)}: {field} has no effect; the end of a run is always saved",)


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
        raise _error(text, "lr_policy", f'is missing: add for example lr_policy: "fixed"; supported are {allowed}')
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
    for count in solver.test_iter:
        if count < 1:
            raise _error(text, "test_iter", f"{count}; it must be at least 1")
    if solver.test_iter and not solver.test_interval:
        raise _error(text, "test_iter", "needs test_interval, the iterations between two tests; add it")


def _without_effect(solver: Message) -> Iterator[tuple[str, str]]:
    if solver.debug_info and not solver.display:
        yield "debug_info", "shows values of displayed iterations only, and display is 0"
    if solver.device_id:
        number = solver.device_id
        yield "device_id", f"has no effect; --device cuda:{number} (samovar caffe: -gpu {number}) takes that GPU"
    if not solver.layer_wise_reduce:
        yield "layer_wise_reduce", "has no effect"
    if solver.snapshot_diff:
        yield "snapshot_diff", "has no effect; gradients are not saved"
    if solver.test_interval and not solver.test_iter:
        yield "test_interval", "has no effect without test_iter"
    if solver.lr_policy in ("exp", "inv", "multistep", "step") and not solver.gamma:
        consequence = "is 0 from the first drop on" if solver.lr_policy != "inv" else "does not fall"
        yield "gamma", f"is 0, so with lr_policy '{solver.lr_policy}' the rate {consequence}"
    if solver.lr_policy == "multistep" and not solver.stepvalue:
        yield "lr_policy", "is 'multistep' without any stepvalue, so the rate does not fall"


def _of_others(solver: Message) -> Iterator[tuple[str, str]]:
    """Constants of another type or policy than the solver's."""
    kind = TYPES[solver.solver_type] if solver.HasField("solver_type") else solver.type
    for field, kinds in _OF_TYPES.items():
        if solver.HasField(field) and kind not in kinds:
            yield field, f"has no effect with type {kind}"
    for field, policies in _OF_POLICIES.items():
        if getattr(solver, field) and solver.lr_policy not in policies:
            yield field, f"has no effect with lr_policy '{solver.lr_policy}'"


def _of_two_folders(text: TextMessage) -> Iterator[tuple[str, str]]:
    """A net that the working folder has and, as another file, the solver's folder too."""
    for field in ("net", "train_net"):
        net = Path(getattr(text.message, field))
        other = text.path.parent / net
        if other.is_file() and net.is_file() and not other.samefile(net):
            yield field, f"is '{net}' of the working folder, as in Caffe; to train {other}, start in its folder"


_NVCAFFE = """
epoch_size global_grad_scale global_grad_scale_adaptive larc larc_policy larc_turbo local_gw_ratio local_lr_auto
max_epoch max_momentum min_lr momentum_policy momentum_power per_parameter_reduce rampup_interval rampup_lr
reduce_buckets solver_data_type store_blobs_in_old_format test_and_snapshot_last_epochs weight_decay_policy
weight_decay_power
"""
_INTEL_CAFFE = """
ap_version disabled_update engine eval_type plateau_winsize show_per_class_result warmup_iter warmup_start_lr
"""
_NVCAFFE_NETS = {
    "NetParameter": """default_forward_type default_backward_type default_forward_math default_backward_math
        global_grad_scale global_grad_scale_adaptive default_cudnn_math_override default_conv_algos_override
        reduce_buckets eltwise_mem_sharing""",
    "LayerParameter": "forward_type backward_type forward_math backward_math debug cudnn_math_override",
    "ConvolutionParameter": "cudnn_convolution_algo_seeker conv_algos_override cudnn_math_override",
    "DataParameter": "threads parser_threads cache",
    "TransformationParameter": "use_gpu_transform",
}
_INTEL_CAFFE_NETS = {"NetParameter": "engine", "LayerParameter": "engine"}
_OWNERS = {
    "SolverParameter": {"NVCaffe": _NVCAFFE, "Intel Caffe": _INTEL_CAFFE},
    **{
        message: {"NVCaffe": names, "Intel Caffe": _INTEL_CAFFE_NETS.get(message, "")}
        for message, names in _NVCAFFE_NETS.items()
    },
}
FOREIGN_FIELDS = {
    message: {name: owner for owner, names in owners.items() for name in names.split()}
    for message, owners in _OWNERS.items()
}
"""Their owner, by message and name."""


def foreign_sentence(field: Skipped) -> str:
    owner = FOREIGN_FIELDS[field.message][field.name]
    return f"{field.name} is a field of {owner} that BVLC Caffe does not have; it has no effect here"
