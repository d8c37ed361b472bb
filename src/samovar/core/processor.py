"""What the processors of this machine say they are, where the system tells (Linux); nothing elsewhere."""

import contextlib
import re
from pathlib import Path

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
