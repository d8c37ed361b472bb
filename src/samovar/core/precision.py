"""What convolutions and inner products compute in; everything else is float32 in any case."""

from typing import Final

FP32: Final = "fp32"
BF16: Final = "bf16"
PRECISIONS: Final = (FP32, BF16)
