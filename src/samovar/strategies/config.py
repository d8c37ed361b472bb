"""The settings of a strategy, as flags and files spell them."""

from dataclasses import dataclass

from samovar.collectives.plans import ALL_REDUCE_NAMES
from samovar.core.errors import InputError

STRATEGIES = ("sync",)
AUTO = "auto"
COLLECTIVES = (*ALL_REDUCE_NAMES, AUTO)


@dataclass(frozen=True, slots=True)
class StrategyConfig:
    """`bucket_size_bytes` None exchanges the whole model as one bucket; `collective` AUTO is for others to resolve."""

    name: str = "sync"
    collective: str = AUTO
    bucket_size_bytes: int | None = None

    def __post_init__(self) -> None:
        _require_choice("--strategy", self.name, STRATEGIES)
        _require_choice("--collective", self.collective, COLLECTIVES)
        if self.bucket_size_bytes is not None and self.bucket_size_bytes < 1:
            raise InputError(f"--bucket: got {self.bucket_size_bytes} bytes; give at least 1, or 'model'")


def parse_bucket(text: str) -> int | None:
    """`model` (one bucket), `layer` (one per parameter), or a number of bytes."""
    if text == "model":
        return None
    if text == "layer":
        return 1
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--bucket: got {text!r}; give 'model', 'layer' or a number of bytes")
    return int(text)


def _require_choice(flag: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{flag}: got {value!r}; choose one of: {', '.join(allowed)}")
