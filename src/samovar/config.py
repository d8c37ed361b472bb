"""The whole configuration of a run: the settings of all parts, checked, and written to `config.json`."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samovar.core.device import CPU, CUDA, DEVICES, FP32, PRECISIONS, is_device
from samovar.core.errors import InputError, require_choice
from samovar.core.group import Host, JobHosts
from samovar.core.large_batch import LargeBatch
from samovar.core.machine import NOMINAL, CalibrationRecord
from samovar.core.plain import from_plain, to_plain
from samovar.core.trace import TraceWindow
from samovar.launch.identity import LIBRARIES
from samovar.report.result import SweptSetting
from samovar.strategies.box_terms import STOP_RULES
from samovar.strategies.config import StrategyConfig, declared_as
from samovar.strategies.recipe import Recipe
from samovar.strategies.traits import AUTO, KINDS, NONE

BATCH_MODES = ("per-worker", "global")
RECIPES = (AUTO, NONE)
PHASES = ("TRAIN", "TEST")
DEFAULT_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The configuration of one `samovar train`, `test` or `time`, as its ranks see it; named as the flags are.

    `model` is a solver (train) or a net (test); `is_solver` says which of them `time` gets, and `phase` which layers it
    times. `iterations` and `seed` None are the solver's own. `weights` are read in order: the last file that has a
    layer wins. `level` and `stages` are added to the net's own state. `by_caffe`: the job came from `samovar caffe`,
    and behaves as Caffe does. `hdf5_out` is the folder for HDF5Output layers. `precision` is that of convolutions and
    inner products; all else, including the weights, is float32.

    `exact` slices of the global batch make the weights independent of the number of workers. Workers leave alone
    `num_taken_cpus` that other programs used at the start. With `hold_data` the memory of all workers holds the decoded
    training set. `sweep` has the measurements of --workers auto. Every `auto` is a pure function of `calibration`.

    `stop_rule`, `record` and `replay` are for workers that do not wait for each other. `box` is the place of their
    center: None is the launcher's, else a name, or HOST:PORT with a `key_file`. `buffer` is the center's name there;
    with `join` it exists already. `device` is where nets compute. With `cuda`, worker i takes device i modulo their
    number. `hosts` has the hosts of a run on several; `cpus` are then those of one host's workers. `metrics`
    names the sinks of figures besides metrics.jsonl. `transport` is the library in whose windows ranks exchange. A
    `stop_rule` or `buffer` of None and a `device` of `auto` are settled before ranks start.
    """

    job: str
    model: Path
    weights: tuple[Path, ...] = ()
    snapshot: Path | None = None
    keeps_snapshot: bool = False
    workers: int = 1
    threads_per_worker: int = 1
    cpus: tuple[tuple[int, ...], ...] = ()
    num_taken_cpus: int = 0
    oversubscribed: bool = False
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    batch_mode: str | None = None
    recipe: str | None = None
    seed: int | None = None
    shuffle: bool = False
    hold_data: bool = False
    iterations: int | None = None
    exact: int | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    out: Path = Path("runs")
    calibration: CalibrationRecord = NOMINAL
    level: int | None = None
    stages: tuple[str, ...] = ()
    by_caffe: bool = False
    phase: str = "TRAIN"
    is_solver: bool = True
    large_batch: LargeBatch | None = None
    hdf5_out: Path | None = None
    precision: str = FP32
    trace: TraceWindow | None = None
    sweep: tuple[SweptSetting, ...] = ()
    stop_rule: str | None = None
    record: bool = False
    replay: Path | None = None
    box: str | None = None
    join: bool = False
    key_file: Path | None = None
    buffer: str | None = None
    device: str = CPU
    hosts: JobHosts | None = None
    metrics: tuple[str, ...] = ()
    transport: str = AUTO

    def __post_init__(self) -> None:
        _require_at_least("--workers", self.workers, 1)
        _require_at_least("--threads-per-worker", self.threads_per_worker, 1)
        if self.iterations is not None:
            _require_at_least("--iterations", self.iterations, 0 if self.job == "train" else 1)
        if self.seed is not None:
            _require_at_least("--seed", self.seed, 0)
        if not 0 < self.timeout_s < 86_400:
            raise InputError(f"--timeout: got {self.timeout_s} s; give more than 0 and less than a day")
        require_choice("--phase", self.phase, PHASES)
        require_choice("--precision", self.precision, PRECISIONS)
        self._check_device()
        if self.batch_mode is not None:
            require_choice("--batch-mode", self.batch_mode, BATCH_MODES)
        if self.exact is not None:
            self._check_exact(self.exact)
        self._check_recipe()
        self._check_free()
        self._check_box()
        require_choice("--transport", self.transport, (AUTO, *LIBRARIES))
        if self.transport != AUTO and (self.box is not None or self.record or self.replay is not None):
            flag = "--box" if self.box is not None else "--record" if self.record else "--replay"
            raise InputError(f"--transport {self.transport}: {flag} needs memory of our own; leave one of them out")
        if self.weights and self.snapshot is not None:
            raise InputError("--weights and --snapshot exclude each other: a snapshot has weights; give one of them")

    def _check_device(self) -> None:
        if not is_device(self.device):
            raise InputError(f"--device: got {self.device!r}; choose one of: {DEVICES}")
        if self.exact is not None and self.device not in (AUTO, CPU):
            raise InputError(
                f"--exact {self.exact}: sums slices in the memory that the net computes in, on the CPU; leave "
                f"--device {self.device} out"
            )
        if self.device.startswith(CUDA) and (flag := self.needs_cpu):
            raise InputError(f"{flag}: is only guaranteed on the CPU, not with --device {self.device}; leave one out")

    def _check_recipe(self) -> None:
        if self.recipe is not None:
            require_choice("--recipe", self.recipe, RECIPES)
        if self.recipe == NONE and self.large_batch is not None:
            raise InputError("--recipe none: --large-batch asks for a recipe; leave one of them out")
        if self.recipe != AUTO:
            return
        if self.strategy.traits.recipe is None:
            raise InputError(f"--recipe auto: {self.strategy.name} declares no recipe; leave it out")
        if self.batch_mode == BATCH_MODES[0]:
            raise InputError("--recipe auto: workers share the batch; leave --batch-mode per-worker out")
        if self.box is not None:
            raise InputError("--recipe auto: workers at a box come and go, so their number is not known; leave it out")

    def _check_free(self) -> None:
        flags = {"--stop-rule": self.stop_rule, "--record": self.record or None, "--replay": self.replay}
        given = [flag for flag, value in flags.items() if value is not None]
        if given and not self.is_async:
            raise InputError(f"{given[0]}: workers with {self.strategy.name} always step together; leave it out")
        if self.is_async and not self.strategy.traits.in_groups and self.strategy.collective != AUTO:
            raise InputError(f"--collective: workers with {self.strategy.name} make no sums; leave it out")
        if self.stop_rule is not None:
            require_choice("--stop-rule", self.stop_rule, STOP_RULES)
        if self.is_async and self.trace is not None:
            raise InputError(
                f"--trace: shows how workers wait for each other, with {self.strategy.name} they do not; leave it out"
            )
        if (self.record or self.replay is not None) and not self.strategy.traits.is_replayable:
            others = ", ".join(name for name, kind in KINDS.items() if kind.traits.is_replayable)
            raise InputError(f"{given[-1]}: {self.strategy.name} cannot be repeated; choose one of: {others}")

    def _check_box(self) -> None:
        if self.box is None:
            flags = {"--join": self.join, "--key-file": self.key_file, "--buffer": self.buffer}
            if given := [flag for flag, value in flags.items() if value]:
                raise InputError(f"{given[0]}: needs a box; give --box NAME or HOST:PORT too, or leave it out")
            return
        if not self.strategy.needs_center:
            raise InputError(
                f"--box {self.box}: workers with {self.strategy.name} share no center; choose shm-easgd or async-easgd"
            )
        if not self.is_async:
            raise InputError(
                f"--box {self.box}: workers with {self.strategy.name} take turns, and those at a box come and go; "
                "choose async-easgd"
            )
        if self.record or self.replay is not None:
            flag = "--record" if self.record else "--replay"
            raise InputError(f"{flag}: other runs may train at a box too; leave it or --box out")
        if self.join and (self.weights or self.snapshot is not None):
            flag = "--weights" if self.weights else "--snapshot"
            raise InputError(f"--join: a run that joins starts from the center of the others; leave {flag} out")

    def _check_exact(self, num_slices: int) -> None:
        strategy = self.strategy
        _require_at_least("--exact", num_slices, 1)
        if num_slices < self.workers:
            raise InputError(
                f"--exact {num_slices}: {self.workers} workers need a slice each; give at least {self.workers}"
            )
        if strategy.exchanges_weights:
            raise InputError(
                f"--exact {num_slices}: workers with {strategy.name} have different weights; leave one out"
            )
        if strategy.overlap not in (None, "none") or strategy.bucket_size_bytes is not None or strategy.updates_parts:
            raise InputError(
                f"--exact {num_slices}: all slices are summed at the end of the step, in a tree of their own; "
                "leave --overlap, --bucket and --owner out"
            )
        if strategy.codec is not None:
            raise InputError(f"--exact {num_slices}: gives the same bits, and compression changes them; leave one out")
        if strategy.collective != AUTO:
            raise InputError(f"--exact {num_slices}: has a plan of its own; leave --collective out")

    def host_of(self, rank: int) -> Host:
        """The host of `rank`, with its workers."""
        return Host("this host", tuple(range(self.workers))) if self.hosts is None else self.hosts.of(rank)

    @property
    def spare_cpus(self) -> int:
        """The cores that each worker has at least, besides those on which it computes."""
        if self.hosts is not None:
            return self.hosts.spare
        return max(0, min((len(cpus) for cpus in self.cpus), default=0) - self.threads_per_worker)

    @property
    def needs_cpu(self) -> str | None:
        """The flag that only the CPU can fulfil: the same bits again, or the time of each layer."""
        flags = {"--exact": self.exact, "--record": self.record or None, "--replay": self.replay, "--trace": self.trace}
        return next((flag for flag, value in flags.items() if value is not None), None)

    @property
    def is_async(self) -> bool:
        """Whether each worker steps at its own speed and does not wait for others."""
        return self.strategy.is_async

    @property
    def shares_batch(self) -> bool:
        """Whether the net's batch_size is that of all workers together."""
        return self.batch_mode == "global" or self.exact is not None or self.used_recipe is not None

    @property
    def leaves_batch(self) -> bool:
        """Whether nothing is said about the batch of a step, or how it changes with the number of workers."""
        return self.batch_mode is None and self.exact is None and self.large_batch is None and self.recipe is None

    @property
    def used_recipe(self) -> Recipe | None:
        """The strategy's, if it was asked for, or is used by default; None with --large-batch, which is another one."""
        recipe = self.strategy.traits.recipe
        if recipe is None or self.large_batch is not None:
            return None
        by_default = recipe.is_default and self.leaves_batch and self.box is None and not self.by_caffe
        return recipe if self.recipe == AUTO or by_default else None

    def to_json(self) -> dict[str, object]:
        """Plain JSON values, in the order of the fields."""
        values: dict[str, object] = to_plain(self)
        return values

    def by_name(self) -> dict[str, object]:
        """`to_json` in one level: the strategy's settings among the others, and its name as "strategy"."""
        values = self.to_json()
        strategy = values.pop("strategy")
        assert isinstance(strategy, dict)
        return {**values, **{("strategy" if name == "name" else name): value for name, value in strategy.items()}}

    @classmethod
    def load(cls, path: Path, *, imports: bool = True) -> "RunConfig":
        """Read a file of `to_json`'s value; InputError if it is not one.

        It may name a user's own strategy, and an import runs its code. So give `imports` only if our launcher wrote the
        file for its ranks.
        """
        try:
            return cls._of(json.loads(path.read_text(encoding="utf-8")), imports=imports)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a configuration of this version ({error}); start the run again") from error

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "RunConfig":
        """The configuration that another host's launcher sent; it names no strategy that this host does not know."""
        try:
            return cls._of(values, imports=False)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"host 0 sent no configuration of this version ({error})") from error

    @classmethod
    def _of(cls, values: dict[str, Any], *, imports: bool) -> "RunConfig":
        if imports and (source := values["strategy"].get("source")) is not None:
            declared_as(source)
        if (name := values["strategy"]["name"]) not in KINDS:
            raise ValueError(f"strategy {name!r} is not known here")
        if missing := [name for name in cls.__slots__ if name not in values]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        return from_plain(cls, values)


def parse_weights(written: str | None) -> tuple[Path, ...]:
    """The files of `--weights a,b`; InputError for an empty name."""
    if written is None:
        return ()
    names = [name.strip() for name in written.split(",")]
    if not all(names):
        raise InputError(f"--weights {written!r}: a name is empty; give files, with commas between them")
    return tuple(map(Path, names))


def _require_at_least(flag: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{flag}: got {value}; give at least {least}")
