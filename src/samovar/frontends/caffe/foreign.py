"""Solver fields of Caffe's descendants, which BVLC Caffe does not have: skipped, with a warning for each."""

_NVCAFFE = """
epoch_size global_grad_scale global_grad_scale_adaptive larc larc_policy larc_turbo local_gw_ratio local_lr_auto
max_epoch max_momentum min_lr momentum_policy momentum_power per_parameter_reduce rampup_interval rampup_lr
reduce_buckets solver_data_type store_blobs_in_old_format test_and_snapshot_last_epochs weight_decay_policy
weight_decay_power
"""
_INTEL_CAFFE = """
ap_version disabled_update engine eval_type plateau_winsize show_per_class_result warmup_iter warmup_start_lr
"""
FOREIGN_FIELDS = dict.fromkeys(_NVCAFFE.split(), "NVCaffe") | dict.fromkeys(_INTEL_CAFFE.split(), "Intel Caffe")
