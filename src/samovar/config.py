"""The whole configuration of a run: the parts' own settings together, checked, and written to `config.json`."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from samovar.core.calibration import NOMINAL, CalibrationRecord
from samovar.core.errors import InputError
from samovar.strategies.config import StrategyConfig

BATCH_MODES = ("per-worker", "global")
DEFAULT_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One `samovar train` or `samovar test`, as its ranks see it; spelled as the flags are.

    `model` is a solver (train) or a net (test). `iterations`, `seed` None: the solver's own (train). Every `auto`
    is a pure function of `calibration`.
    """

    job: str
    model: Path
    weights: Path | None = None
    snapshot: Path | None = None
    workers: int = 1
    threads_per_worker: int = 1
    cpus: tuple[tuple[int, ...], ...] = ()
    oversubscribed: bool = False
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    batch_mode: str = "per-worker"
    seed: int | None = None
    shuffle: bool = False
    iterations: int | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    out: Path = Path("runs")
    calibration: CalibrationRecord = NOMINAL

    def __post_init__(self) -> None:
        _require_at_least("--workers", self.workers, 1)
        _require_at_least("--threads-per-worker", self.threads_per_worker, 1)
        if self.iterations is not None:
            _require_at_least("--iterations", self.iterations, 0 if self.job == "train" else 1)
        if self.seed is not None:
            _require_at_least("--seed", self.seed, 0)
        if not 0 < self.timeout_s < 86_400:
            raise InputError(f"--timeout: got {self.timeout_s} s; give more than 0 and less than a day")
        if self.batch_mode not in BATCH_MODES:
            raise InputError(f"--batch-mode: got {self.batch_mode!r}; choose one of: {', '.join(BATCH_MODES)}")
        if self.weights is not None and self.snapshot is not None:
            raise InputError("--weights and --snapshot exclude each other: a snapshot holds weights; give one")

    def to_json(self) -> dict[str, object]:
        """Plain JSON values, in the order of the fields."""
        values = dataclasses.asdict(self)
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    @classmethod
    def load(cls, path: Path) -> "RunConfig":
        """Read back a file that holds `to_json`'s value; InputError where it does not."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            for name in ("model", "weights", "snapshot", "out"):
                values[name] = None if values[name] is None else Path(values[name])
            values["cpus"] = tuple(tuple(cpus) for cpus in values["cpus"])
            values["strategy"] = StrategyConfig(**values["strategy"])
            values["calibration"] = CalibrationRecord.from_json(values["calibration"])
            return cls(**values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a configuration of this version ({error}); start the run anew") from error


def _require_at_least(flag: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{flag}: got {value}; give at least {least}")
