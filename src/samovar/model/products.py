"""Matrix products by the faster library: oneDNN uses the widest instructions of any CPU, MKL only those of Intel's.

Measured on one thread, oneDNN against MKL. On AMD with AVX-512, oneDNN is 2 times as fast for AlexNet's fc6 (16 x 9216
by 9216 x 4096) and for 6272 x 192 by 192 x 64. On Intel with AVX-512, fc6 forward is 1.6 times as fast. Its gradient
of x is 0.57 times as fast there, and that of the weight 0.37 times (MKL writes it in place).
"""

from typing import Final

import torch
import torch.nn.functional as F

from samovar.core.host import vendor

_HAS_ONEDNN: Final = bool(torch.backends.mkldnn.is_available()) and all(  # type: ignore[no-untyped-call]
    hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_convolution_pointwise")
)


_HAS_HALF: Final = _HAS_ONEDNN and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


_TYPES: Final = (torch.float32, torch.bfloat16) if _HAS_HALF else (torch.float32,)


_HAS_WIDE_MKL: Final = vendor() == "GenuineIntel" and bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]


_LARGE_BYTES: Final = 8 << 20  # of rows of weights: MKL's order of reading them is worse than oneDNN's


_BLOCK_BYTES: Final = 4 << 20  # of results on their way to another place: they fit the cache, and reuse its memory


def product(a_MK: torch.Tensor, b_NK: torch.Tensor, bias_N: torch.Tensor | None = None) -> torch.Tensor:
    """a b^T + bias, shape (M, N), both in one type; not differentiable. `b_NK` may be a transposed view."""
    if _is_for_torch(a_MK, b_NK):
        return F.linear(a_MK, b_NK, bias_N)
    y_MN: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a_MK, b_NK, bias_N, "none", [], "")
    return y_MN


def pointwise_convolution(x_NCHW: torch.Tensor, weight_OC11: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """y[n, :, h, w] = W x[n, :, h, w] + b, channels-last; not differentiable.

    PyTorch uses MKL for small batches.
    """
    if not _is_for_onednn(x_NCHW):
        return F.conv2d(x_NCHW, weight_OC11, bias_O)
    geometry = ((0, 0), (1, 1), (1, 1), 1)
    y: torch.Tensor = torch.ops.mkldnn._convolution_pointwise(x_NCHW, weight_OC11, bias_O, *geometry, "none", [], "")
    return y


def _is_for_onednn(x: torch.Tensor) -> bool:
    return _HAS_ONEDNN and x.device.type == "cpu" and x.dtype in _TYPES and x.numel() > 0


def _is_for_torch(a_MK: torch.Tensor, b_NK: torch.Tensor) -> bool:
    """Whether to use torch's own product, which is MKL's on most CPUs."""
    if not _is_for_onednn(a_MK):
        return True
    is_large = b_NK.is_contiguous() and b_NK.nbytes >= _LARGE_BYTES
    return _HAS_WIDE_MKL and a_MK.dtype == torch.float32 and not is_large


def put_product(out_MN: torch.Tensor, a_MK: torch.Tensor, b_NK: torch.Tensor, accumulate: bool) -> None:
    """out = a b^T, or out += a b^T; `out_MN` may have another type than the product.

    oneDNN works in blocks of rows, without memory of the result's size. Page faults would take longer than the
    product (AlexNet's fc6: 15 ms instead of 76).
    """
    if out_MN.dtype == a_MK.dtype and _is_for_torch(a_MK, b_NK):
        torch.addmm(out_MN, a_MK, b_NK.t(), beta=int(accumulate), out=out_MN)
        return
    num_rows = max(16, _BLOCK_BYTES // (4 * b_NK.shape[0]))
    a_MK = a_MK.contiguous()
    for first in range(0, len(a_MK), num_rows):
        put(out_MN[first : first + num_rows], product(a_MK[first : first + num_rows], b_NK), accumulate)


def put(out: torch.Tensor, value: torch.Tensor, accumulate: bool) -> None:
    """out = value, or out += value."""
    if accumulate:
        out.add_(value)
    else:
        out.copy_(value)
