"""The snapshots of a training run: Samovar's state, and the same as Caffe's pair of files."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.checkpoint.store import SnapshotStore, StagedPart
from samovar.collectives.engine import RecordExchange
from samovar.config import RunConfig
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.stateful import State
from samovar.formats.caffe.blob import MAX_BINARY_BYTES
from samovar.formats.caffe.caffemodel import LayerRecord, encode_caffemodel, encode_caffemodel_hdf5
from samovar.formats.caffe.solverstate import SolverState, encode_solverstate, encode_solverstate_hdf5
from samovar.frontends.caffe.solver import CaffeSolver, SnapshotFormat, solver_config
from samovar.frontends.caffe.weights import stored_layers
from samovar.report.run_folder import RunFolder, write_atomic
from samovar.solver.flat import num_histories
from samovar.training.build import Learner
from samovar.training.evaluation import CenterWeights
from samovar.training.resume import RANK_PART, SHARES_BATCH
from samovar.transports.base import Notification, Region, Transport


def make_saver(
    caffe: CaffeSolver, learner: Learner, config: RunConfig, transport: Transport
) -> "PrefixSaver | FolderSaver":
    """A saver into the run folder, or for `samovar caffe train` to the solver's snapshot_prefix. Raises InputError."""
    require_room(caffe.snapshot_format, learner.num_parameters, num_histories(solver_config(caffe)))
    if caffe.snapshot_format == "HDF5":  # names that it cannot hold show now
        outlines, one = learner.net.layers_for_caffemodel(), np.zeros(1, np.float32)
        encode_caffemodel_hdf5(LayerRecord(o.name, o.type, (), (), [one] * len(o.parameter_names)) for o in outlines)
    if config.by_caffe:
        return PrefixSaver(caffe, learner, transport.group.rank)
    return FolderSaver(RunFolder(config.out).snapshots, caffe, learner, config, transport)


def require_room(form: SnapshotFormat, num_values: int, histories: int) -> None:
    """Refuse at the start what the first snapshot would find out, perhaps after hours."""
    num_bytes = np.dtype(np.float32).itemsize * num_values * max(1, histories)
    if form != "HDF5" and num_bytes > MAX_BINARY_BYTES:
        raise InputError(
            f"snapshot_format: a binary file of Caffe holds 2 GB, and the state of this net has {num_bytes:,} bytes; "
            "write snapshot_format: HDF5 into the solver"
        )


class PrefixSaver:
    """Save only Caffe's pair of files: `<snapshot_prefix>_iter_<steps>.caffemodel` and `.solverstate`."""

    def __init__(self, caffe: CaffeSolver, learner: Learner, rank: int) -> None:
        self._prefix = caffe.snapshot_prefix
        self._format = caffe.snapshot_format
        self._learner = learner
        self._rank = rank

    def save(self, steps_done: int) -> Path | None:
        """Write the pair. Returns the path of the weights on rank 0."""
        learner = self._learner
        learner.strategy.gather_histories()
        with learner.with_evaluated_weights():
            learner.finite.require_own()
            if self._rank:
                return None
            files = caffe_files(
                f"{self._prefix}_iter_{steps_done}",
                self._format,
                learner,
                steps_done,
                learner.model.weights.logical_arrays(),
            )
        for name, content in files.items():
            write_atomic(Path(name), content, "make room there or change the solver's snapshot_prefix")
        return Path(next(iter(files)))


class FolderSaver:
    """Saves a run's state after a step into its snapshot folder; all ranks save at the same steps.

    Its parts are `weights` (the evaluated ones), `momentum` (all that rank 0's solver keeps), `factors` (the gradients
    that travel so) and `strategy` (equal on all ranks). If workers have their own weights, momentum or strategy state,
    each also writes its own part, and rank 0 puts them all into one snapshot.
    """

    def __init__(
        self, folder: Path, caffe: CaffeSolver, learner: Learner, config: RunConfig, transport: Transport
    ) -> None:
        self._store = SnapshotStore(folder)
        # A store's files have plain names; "models\\lenet" is a path on Windows.
        self._prefix = caffe.snapshot_prefix.name.rpartition("\\")[2].lstrip(".") or caffe.net.path.stem
        self._format = caffe.snapshot_format
        self._learner = learner
        self._config = config
        self._group = transport.group
        self._stagings = RecordExchange(transport, 1) if learner.has_private_state else None
        others = () if config.hosts is None else tuple(r for host in config.hosts.hosts[1:] for r in host.ranks)
        self._others: PartsOfOthers | None = None
        if others and self._stagings is not None:
            self._others = PartsOfOthers(self._store, transport, others, self._deadline)
        if self._group.rank == 0:
            self._store.clean()

    def save(self, steps_done: int) -> Path | None:
        """Write the snapshot of `steps_done`. Returns its folder on rank 0; raises InputError if the disk refuses."""
        learner = self._learner
        learner.strategy.drain()  # weights that are under way belong to this step, too
        learner.finite.require_own()
        staged = () if self._stagings is None else self._stage(self._stagings, steps_done)
        learner.strategy.gather_histories()
        with learner.with_evaluated_weights():
            return self._write(steps_done, staged) if self._group.rank == 0 else None

    def _stage(self, stagings: RecordExchange, steps_done: int) -> tuple[StagedPart, ...]:
        """Write this rank's part, and wait until every rank has written its own."""
        own = self._store.stage(steps_done, RANK_PART.format(self._group.rank), private_state(self._learner))
        came = {} if self._others is None else self._others.collect(own)
        process_ids = stagings.gather([os.getpid()], self._deadline())[:, 0]
        parts = [StagedPart(steps_done, RANK_PART.format(rank), int(pid)) for rank, pid in enumerate(process_ids)]
        return tuple(came.get(rank, part) for rank, part in enumerate(parts))

    def _deadline(self) -> Deadline:
        """For a wait between ranks; with other hosts, their parts travel meanwhile, one after the other."""
        hosts = self._config.hosts
        return Deadline.after(self._config.timeout_s * (1 if hosts is None else self._group.world_size))

    def _write(self, steps_done: int, staged: tuple[StagedPart, ...]) -> Path:
        learner = self._learner
        weights = learner.model.weights.logical_arrays()
        parts: dict[str, State] = {"weights": {**weights}, "momentum": learner.solver.state_dict()}
        if isinstance(learner.evaluated, CenterWeights):
            parts["strategy"] = learner.evaluated.strategy_state()
        elif learner.has_private_state:
            parts["strategy"] = learner.strategy.state_dict()
        elif state := learner.strategy.state_dict():
            parts["factors"] = state
        files = caffe_files(f"{self._prefix}_iter_{steps_done}", self._format, learner, steps_done, weights)
        config = {**self._config.to_json(), SHARES_BATCH: self._config.shares_batch}
        return self._store.save(steps_done, parts, files, config, staged)


def caffe_files(
    name: str, form: SnapshotFormat, learner: Learner, steps_done: int, weights: Mapping[str, npt.NDArray[np.float32]]
) -> dict[str, bytes]:
    """Caffe's pair by path, weights first, in the form that the solver's snapshot_format asks for."""
    net = learner.net
    records = stored_layers(net, weights)
    suffix = ".h5" if form == "HDF5" else ""
    model, state = f"{name}.caffemodel{suffix}", f"{name}.solverstate{suffix}"
    solver_state = _solver_state(learner, steps_done, model)
    if form == "HDF5":
        return {model: encode_caffemodel_hdf5(records), state: encode_solverstate_hdf5(solver_state)}
    return {model: encode_caffemodel(net.name, records), state: encode_solverstate(solver_state)}


def private_state(learner: Learner) -> State:
    """A worker's own state: `weights/` and `momentum/` with the parameter's name, and `strategy/` with its names."""
    parts: dict[str, State] = {}
    if learner.evaluated.differ_between_ranks:
        parts["weights"] = learner.model.state_dict()
        parts["momentum"] = learner.solver.state_dict() if learner.strategy.exchanges == "weights" else {}
    if learner.has_residuals:
        parts["strategy"] = learner.strategy.state_dict()
    return {f"{part}/{name}": value for part, state in parts.items() for name, value in state.items()}


def _solver_state(learner: Learner, steps_done: int, learned_net: str) -> SolverState:
    """All first histories in the net's order of parameters, then all second ones."""
    solver, names = learner.solver, [info.name for info in learner.net.parameter_infos]
    arrays = [history.logical(name) for history in solver.histories for name in names]
    return SolverState(steps_done, learned_net, arrays, solver.config.policy.drops(max(0, steps_done - 1)))


_CHUNK_BYTES = 1 << 20
_GO = 0  # a rank's slot for rank 0's word that it may put the next chunk


class PartsOfOthers:
    """The way of staged parts from the ranks `others`, of other hosts, to rank 0, which writes the snapshot.

    All ranks make it, and call `collect` together. `deadline` limits the wait for one chunk.

    Cost: each byte once over the network, in chunks of a MiB, each of them awaited; one rank at a time.
    """

    def __init__(
        self, store: SnapshotStore, transport: Transport, others: tuple[int, ...], deadline: Callable[[], Deadline]
    ) -> None:
        self._store, self._others, self._deadline = store, others, deadline
        self._rank = transport.group.rank
        self._window = transport.open_window("parts of snapshots", 8 + _CHUNK_BYTES, transport.group.world_size)
        self._size = Region.of(self._window, 0, 1, np.uint64).array
        self._count = dict.fromkeys(others, 0)

    def collect(self, own: StagedPart) -> dict[int, StagedPart]:
        """On rank 0, the parts of the other hosts' ranks, staged there; raises InputError if its disk refuses."""
        if self._rank == 0:
            return {rank: self._take(rank, own.step) for rank in self._others}
        if self._rank in self._others:
            self._give(own)
        return {}

    def _give(self, own: StagedPart) -> None:
        folder = self._store.folder / own.folder_name
        paths = sorted(folder.iterdir())
        self._put(json.dumps({path.name: path.stat().st_size for path in paths}).encode())
        for path in paths:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    self._put(chunk)
            path.unlink()
        folder.rmdir()

    def _put(self, chunk: bytes) -> None:
        self._count[self._rank] = count = self._count[self._rank] + 1
        self._window.wait(_GO, count, 0, self._deadline())
        self._window.put(0, 8, np.frombuffer(chunk, np.uint8))
        self._window.put(0, 0, np.array([len(chunk)], np.uint64), Notification(self._rank, count))

    def _take(self, rank: int, step: int) -> StagedPart:
        staged = StagedPart(step, RANK_PART.format(rank), os.getpid())
        folder = self._store.folder / staged.folder_name
        sizes = json.loads(self._chunk(rank))
        try:
            folder.mkdir(parents=True)
            for name, size in sizes.items():
                with (folder / Path(name).name).open("wb") as file:
                    while file.tell() < size:
                        file.write(self._chunk(rank))
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise InputError(
                f"snapshot of step {step}: the part of rank {rank} cannot be written in {folder}: {error.strerror}; "
                "make room there, or give another folder with --out"
            ) from error
        return staged

    def _chunk(self, rank: int) -> bytes:
        """The next chunk of that rank."""
        self._count[rank] = count = self._count[rank] + 1
        self._window.notify(rank, Notification(_GO, count))
        self._window.wait(rank, count, rank, self._deadline())
        return self._window.local[8 : 8 + int(self._size[0])].tobytes()
