"""Fields of Caffe's descendants, which BVLC Caffe does not have: skipped, with a warning for each.

Of nets only those that leave a layer's results as they are: how it computes, not what.
"""

from samovar.formats.caffe.text import Skipped

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
    """What a warning says of a field."""
    owner = FOREIGN_FIELDS[field.message][field.name]
    return f"{field.name} is a field of {owner} that BVLC Caffe does not have; it has no effect here"
