"""Quantities in plain units: "10 Gbit/s", "25 us", "4 Tflop/s", "5 %", to and from numbers in SI units."""

import math
import re
from decimal import Decimal
from typing import Final

_WRITTEN = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([^\s0-9].*?)?\s*")
_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}

SECONDS, BANDWIDTH, SPEED, SHARE = "a time", "a bandwidth", "a speed", "a share"

# Of each kind: how many SI units a unit is; bandwidths count bytes.
_UNITS: Final = {
    SECONDS: {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0},
    BANDWIDTH: {
        **{f"{prefix}bit/s": size / 8 for prefix, size in _PREFIXES.items()},
        **{f"{prefix}B/s": size for prefix, size in (_PREFIXES | _BINARY).items()},
    },
    SPEED: {f"{prefix}flop/s": size for prefix, size in _PREFIXES.items()},
    SHARE: {"%": 0.01},
}
_EXAMPLES: Final = {SECONDS: "25 us", BANDWIDTH: "10 Gbit/s", SPEED: "4 Tflop/s", SHARE: "5 %"}


def is_count(text: str) -> bool:
    """Whether it is a whole number in digits, of a size that `int` takes at once."""
    return re.fullmatch("[0-9]{1,18}", text) is not None


def quantity(written: object, kind: str) -> float:
    """The number of SI units that this text is; raises ValueError with an example of the kind."""
    example = f"write {kind} such as {_EXAMPLES[kind]!r}"
    if not isinstance(written, str):
        raise ValueError(f"is {written!r}, without a unit; {example}")
    found = _WRITTEN.fullmatch(written)
    if found is None:
        raise ValueError(f"is {written!r}; {example}")
    units = _UNITS[kind]
    size = units.get((found[2] or "").strip())
    if size is None:
        raise ValueError(f"is {written!r}; {example}, in one of {', '.join(list(units)[:12])}")
    try:
        value = float(Decimal(found[1]) * Decimal(repr(size)))  # 25 us is 25e-6, to the last bit
    except ArithmeticError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"is {written!r}, which is not finite; {example}")
    return value


def seconds(value: float) -> str:
    """Three digits and a unit: "12.3 ms"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{_digits(value / size)} {unit}"
    return f"{_digits(value / 1e-9)} ns" if value >= 1e-12 else "0 s"


def duration(value: float) -> str:
    """For long times: "3.4 h", "2.1 days"."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if value >= 2 * size:
            return f"{_digits(value / size)} {unit}"
    return seconds(value)


def size(num_bytes: float) -> str:
    """Three digits and a unit: "54.1 MB"."""
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= one:
            return f"{_digits(num_bytes / one)} {unit}"
    return f"{num_bytes:.0f} B"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"
