"""Where nets compute, as --device names it."""

import re
from typing import Final

AUTO: Final = "auto"
CPU: Final = "cpu"
STAGED_CPU: Final = "cpu-staged"  # the CPU, in memory of its own: the copies of a GPU where there is none
NEAR_CPU: Final = "cpu-near"  # the CPU, with the code of GPUs that exchange where models lie
CUDA: Final = "cuda"
GPU: Final = "gpu"  # a number of workers: one for each GPU
DEVICES: Final = f"{AUTO}, {CPU}, {STAGED_CPU}, {NEAR_CPU}, {CUDA}, {CUDA}:N"


def is_device(written: str) -> bool:
    """Whether --device may be this."""
    return re.fullmatch(rf"{AUTO}|{CPU}|{STAGED_CPU}|{NEAR_CPU}|{CUDA}(:\d{{1,3}})?", written, re.ASCII) is not None


FP32: Final = "fp32"
BF16: Final = "bf16"
PRECISIONS: Final = (FP32, BF16)
