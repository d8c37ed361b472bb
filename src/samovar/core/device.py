"""Where nets compute, as --device names it."""

import contextlib
import re
from pathlib import Path
from typing import Final

AUTO: Final = "auto"
CPU: Final = "cpu"
STAGED_CPU: Final = "cpu-staged"  # the CPU, in memory of its own: the copies of a GPU where there is none
CUDA: Final = "cuda"
DEVICES: Final = f"{AUTO}, {CPU}, {STAGED_CPU}, {CUDA}, {CUDA}:N"


def is_device(written: str) -> bool:
    """Whether --device may be this."""
    return re.fullmatch(rf"{AUTO}|{CPU}|{STAGED_CPU}|{CUDA}(:\d{{1,3}})?", written, re.ASCII) is not None


FP32: Final = "fp32"
BF16: Final = "bf16"
PRECISIONS: Final = (FP32, BF16)


_PROCESSORS = Path("/proc/cpuinfo")


def vendor(path: Path = _PROCESSORS) -> str:
    """The maker, such as "GenuineIntel" or "AuthenticAMD"; an empty string where it is not told."""
    return next(iter(_values("vendor_id", path)), "")


def models(path: Path = _PROCESSORS) -> list[str]:
    """The name of every core's model."""
    return _values("model name", path)


def _values(key: str, path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return re.findall(rf"^{key}\s*:\s*(.+)$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return []
