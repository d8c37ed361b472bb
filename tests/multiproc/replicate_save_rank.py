"""Rank program: checkpoints of all ranks in one file, and in those of torch.distributed.checkpoint.

The environment's SAVED names a folder, which runs of 1, 2 and 3 ranks use one after the other.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader, TensorDataset

import samovar
from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.box.base import PendingPush, Versions
from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.transports.base import Array
from tests.multiproc.replicate_nets import perceptron, replicated, train, values
from tests.multiproc.replicate_ranks import Scenario, serve_rank

FOLDER = Path(os.environ.get("SAVED", "."))
SAVED_AT, STEPS = 4, 9
EQUAL_BITS: dict[str, dict[str, Any]] = {
    "sync": {},
    "local-sgd": {"sync_period_steps": 3},
    "diloco": {"sync_period_steps": 3},
    "sync-easgd": {"sync_period_steps": 3},
    "round-robin-easgd": {"sync_period_steps": 3},
}
AT_A_CENTER: dict[str, dict[str, Any]] = {
    "shm-easgd": {"sync_period_steps": 2},
    "async-easgd": {"sync_period_steps": 2, "overlap": "period"},
    "async-msgd": {"sync_period_steps": 2, "center_momentum": 0.5},
    "hybrid-easgd of one": {"sync_period_steps": 2, "group_size": 1},
}
# Loads of another strategy's file: of one step, of a step for each rank, and by ranks that keep equal weights.
TO_ANOTHER = ("sync-easgd to local-sgd", "shm-easgd to sync-easgd")
TO_EQUAL = ("local-sgd to sync", "local-sgd to hybrid-easgd", "hybrid-easgd of one to hybrid-easgd")


class Run:
    """A net and its replica."""

    def __init__(self, process_group: ProcessGroup, strategy: str, seed: int = 1) -> None:
        self.process_group = process_group
        in_one_group = {"sync_period_steps": 8, "group_size": process_group.group.world_size}
        settings = {**EQUAL_BITS, **AT_A_CENTER, "hybrid-easgd": in_one_group}[strategy]
        self.model = perceptron(seed)
        if strategy == "async-msgd":
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, amsgrad=True)
        settings = {"name": strategy.removesuffix(" of one"), **settings}
        self.replica: Replica = replicated(process_group, self.model, self.optimizer, **settings)

    def train(self, first: int, stop: int) -> None:
        train(self.replica, self.model, self.optimizer, first, stop)


def resumes(process_group: ProcessGroup, strategy: str) -> Any:
    """A run that goes on while its file is written, and one that begins from the file."""
    path = FOLDER / f"{strategy}_{process_group.group.world_size}.safetensors"
    run = Run(process_group, strategy)
    run.train(0, SAVED_AT)
    random = torch.rand(3)
    extra = {"rank": run.replica.rank, "words": ("a", None, True), "random": random, 0: float("inf")}
    run.replica.save(path, extra, wait=False)
    drawn = random.tolist()
    random.zero_()
    run.train(SAVED_AT, STEPS)
    run.replica.close()
    again = Run(process_group, strategy, seed=77)
    loaded = again.replica.load(path)
    steps, read = again.replica.step_count, values(again.model)
    again.train(SAVED_AT, STEPS)
    same_random = loaded.pop("random").tolist() == drawn
    ended, whole = values(again.model), values(run.model)
    again.replica.close()
    return {"whole": whole, "ended": ended, "read": read, "steps": steps, "extra": repr(loaded), "random": same_random}


def push_late(run: Run) -> None:
    """Over a slow link a push comes to the center long after the step that began it."""
    exchange: Any = run.replica._exchange
    center = getattr(exchange, "_hybrid", exchange._strategy)._center
    push = center.accumulate_in_background

    def late(sequence: int, difference: Array) -> PendingPush:
        def landed(deadline: Deadline) -> Versions:
            time.sleep(0.1)
            (begun := push(sequence, difference)).wait(deadline)
            return cast(Versions, begun.versions)

        return PendingPush(landed)

    center.accumulate_in_background = late


def center_comes_back(process_group: ProcessGroup, strategy: str) -> Any:
    """At a center: weights and center are those of the moment of the save, for all ranks."""
    path = FOLDER / f"{strategy}_{process_group.group.world_size}.safetensors"
    run = Run(process_group, strategy)
    if not run.replica.is_first:
        push_late(run)
    run.train(0, SAVED_AT + run.replica.rank)
    run.replica.barrier()
    run.replica.save(path, {"rank": run.replica.rank})
    saved, center = values(run.model), _center_of(run)
    run.replica.barrier()
    run.train(0, 3)
    run.replica.barrier()
    run.replica.load(path)
    result = {"saved": saved, "read": values(run.model), "steps": run.replica.step_count}
    run.replica.barrier()
    result |= {"center": center, "center_read": _center_of(run)}
    run.replica.barrier()
    run.replica.close()
    return result


def _center_of(run: Run) -> list[float]:
    with run.replica.evaluating():
        return values(run.model)


def _moments_of(run: Run) -> float:
    return sum(float(kept["exp_avg"].abs().sum()) for kept in run.optimizer.state.values())


def of_two_ranks(process_group: ProcessGroup, strategy: str, other: str = "") -> Any:
    """The file that two ranks have saved, with any number of ranks, perhaps by another strategy."""
    run = Run(process_group, other or strategy, seed=77)
    loaded = run.replica.load(FOLDER / f"{strategy}_2.safetensors")
    result = {"read": values(run.model), "steps": run.replica.step_count, "rank": loaded["rank"]}
    result["moments"] = _moments_of(run)
    run.train(SAVED_AT, STEPS)
    result["ended"] = values(run.model)
    run.replica.close()
    return result


def one_after_the_other(process_group: ProcessGroup) -> Any:
    run = Run(process_group, "sync")
    path = FOLDER / "new" / "last.safetensors"
    for number in range(5):
        run.replica.save(path, number, wait=False)
        run.train(number, number + 1)
    run.replica.wait_for_save()
    found = [run.replica.load(path), run.replica.step_count, sorted(each.name for each in path.parent.iterdir())]
    run.replica.barrier()  # or the next save of a faster rank would be among the files
    run.replica.close()
    return found


@contextmanager
def _default_group(process_group: ProcessGroup, name: str) -> Iterator[None]:
    group = process_group.group
    store = dist.FileStore(str(FOLDER / f"{name}_{group.world_size}"), group.world_size)
    dist.init_process_group("gloo", store=store, rank=group.rank, world_size=group.world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def distributed(process_group: ProcessGroup, strategy: str) -> Any:
    """DCP with a default process group, next to an object of the script's own."""
    folder = FOLDER / f"{strategy}_{process_group.group.world_size}_dcp"
    with _default_group(process_group, strategy):
        run = Run(process_group, strategy)
        run.train(0, SAVED_AT)
        dcp.save({"replica": samovar.DistributedState(run.replica), "own": torch.ones(3)}, checkpoint_id=folder)
        run.train(SAVED_AT, STEPS)
        run.replica.close()
        again, own = Run(process_group, strategy, seed=77), torch.zeros(3)
        dcp.load({"replica": samovar.DistributedState(again.replica, folder), "own": own}, checkpoint_id=folder)
        steps = again.replica.step_count
        again.train(SAVED_AT, STEPS)
        again.replica.close()
    return {"whole": values(run.model), "ended": values(again.model), "steps": steps, "own": own.tolist()}


def distributed_of_two_ranks(process_group: ProcessGroup, strategy: str) -> Any:
    """DCP without a process group, with any number of ranks."""
    folder = FOLDER / f"{strategy}_2_dcp"
    run = Run(process_group, strategy, seed=77)
    dcp.load({"replica": samovar.DistributedState(run.replica, folder, "replica")}, checkpoint_id=folder)
    result = {"read": values(run.model), "steps": run.replica.step_count}
    result["moments"] = _moments_of(run)
    run.replica.close()
    return result


def _error_of(process_group: ProcessGroup, mistake: Callable[[Run], Any], strategy: str = "sync") -> Any:
    run = Run(process_group, strategy)
    run.train(0, 1)
    try:
        mistake(run)
    except SamovarError as error:
        return {"kind": type(error).__name__, "text": str(error)}
    finally:
        with suppress(SamovarError):
            run.replica.close()
    return {"kind": None, "text": "nothing was said"}


def cannot_be_saved(run: Run) -> None:
    run.replica.save(FOLDER / "a.safetensors", {"optimizer": run.optimizer} if run.replica.is_first else None)


def no_folder(run: Run) -> None:
    (FOLDER / "file").touch()
    run.replica.save(FOLDER / "file" / "a.safetensors")


def comes_out_at_the_next_save(run: Run) -> None:
    (FOLDER / "taken").mkdir(exist_ok=True)
    run.replica.save(FOLDER / "taken", wait=False)
    run.train(1, 2)
    run.replica.save(FOLDER / "b.safetensors", wait=False)


def comes_out_at_close(run: Run) -> None:
    (FOLDER / "taken").mkdir(exist_ok=True)
    run.replica.save(FOLDER / "taken", wait=False)
    run.replica.close()


def two_paths(run: Run) -> None:
    run.replica.save(FOLDER / f"rank_{run.replica.rank}.safetensors")


def one_rank_saves(run: Run) -> None:
    if run.replica.is_first:
        run.replica.save(FOLDER / "a.safetensors")
    else:
        run.train(1, 2)
        run.replica.finish()


def one_rank_has_data(run: Run) -> None:
    """A stream whose first rank has one more batch than the others."""
    data = TensorDataset(torch.zeros(4 * run.replica.world_size + 1, 6))
    errors = []
    for number, (x,) in enumerate(run.replica.shard(DataLoader(_Stream(data), batch_size=4))):
        run.replica.backward(run.model(x).sum())
        run.replica.step()
        if number:
            try:
                run.replica.save(FOLDER / "a.safetensors")
            except SamovarError as error:
                errors.append(error)
    if errors:
        raise errors[0]


class _Stream(torch.utils.data.IterableDataset[Any]):
    def __init__(self, data: TensorDataset) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        return iter(self._data)


def missing(run: Run) -> None:
    run.replica.load(FOLDER / "none.safetensors")


def damaged(run: Run) -> None:
    path = FOLDER / "damaged.safetensors"
    run.replica.save(path)
    before = values(run.model)
    run.train(1, 2)
    if run.replica.is_first:
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
    run.replica.barrier()
    try:
        run.replica.load(path)
    finally:
        assert values(run.model) != before, "it was loaded"


def of_another_kind(run: Run) -> None:
    path = FOLDER / "other.safetensors"
    if run.replica.is_first:
        path.write_bytes((2).to_bytes(8, "little") + b"{}")
    run.replica.barrier()
    run.replica.load(path)


def mixed(run: Run) -> None:
    """Each host with a file of another save, for example."""
    run.replica.save(path := FOLDER / "mixed.safetensors")
    run.train(1, 2)
    run.replica.save(later := FOLDER / "later.safetensors")
    run.replica.load(path if run.replica.is_first else later)


def does_not_fit_on_one_rank(run: Run) -> None:
    state = run.replica.state_dict()
    name, weight = next(iter(state["model"].items()))
    if run.replica.is_first:
        state["model"][name] = weight[:1].clone()
    run.replica.load_state_dict(state)


def distributed_alone(run: Run) -> None:
    dcp.save({"replica": samovar.DistributedState(run.replica)}, checkpoint_id=FOLDER / "alone_dcp")


def distributed_cannot_be_saved(run: Run) -> None:
    """One rank's optimizer has a state of another kind."""
    if run.replica.is_first:
        run.optimizer.state[next(run.model.parameters())]["kind"] = type
    with _default_group(run.process_group, "refused"):
        dcp.save({"replica": samovar.DistributedState(run.replica)}, checkpoint_id=FOLDER / "refused_dcp")


def distributed_missing(run: Run) -> None:
    dcp.load({"replica": samovar.DistributedState(run.replica, FOLDER / "none")}, checkpoint_id=FOLDER / "none")


def distributed_without_replica(run: Run) -> None:
    folder = FOLDER / "empty_dcp"
    if run.replica.is_first:
        dcp.save({"own": torch.ones(3)}, checkpoint_id=folder, no_dist=True)
    run.replica.barrier()
    dcp.load({"replica": samovar.DistributedState(run.replica, folder)}, checkpoint_id=folder)


def given_itself(run: Run) -> None:
    """A replica has the methods that DCP asks for, but a new optimizer has no state for DCP to fill."""
    folder = FOLDER / "itself_dcp"
    if run.replica.is_first:
        state = run.replica.state_dict()
        dcp.save({"replica": state}, checkpoint_id=folder, no_dist=True)
    run.replica.barrier()
    model = perceptron(77)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    other = replicated(run.process_group, model, optimizer)
    dcp.load({"replica": other}, checkpoint_id=folder)


MISTAKES = (
    cannot_be_saved,
    no_folder,
    comes_out_at_the_next_save,
    comes_out_at_close,
    two_paths,
    one_rank_saves,
    one_rank_has_data,
    missing,
    damaged,
    of_another_kind,
    mixed,
    does_not_fit_on_one_rank,
    distributed_alone,
    distributed_cannot_be_saved,
    distributed_missing,
    distributed_without_replica,
    given_itself,
)
SCENARIOS: dict[str, Scenario] = {
    **{f"resumes/{strategy}": partial(resumes, strategy=strategy) for strategy in EQUAL_BITS},
    **{f"center/{strategy}": partial(center_comes_back, strategy=strategy) for strategy in AT_A_CENTER},
    "one_after_the_other": one_after_the_other,
    **{f"distributed/{strategy}": partial(distributed, strategy=strategy) for strategy in ("sync", "sync-easgd")},
    **{mistake.__name__: partial(_error_of, mistake=mistake) for mistake in MISTAKES},
    "one_rank_saves/shm-easgd": partial(_error_of, mistake=one_rank_saves, strategy="shm-easgd"),
}
OF_TWO: dict[str, Scenario] = {
    **{f"of_two/{strategy}": partial(of_two_ranks, strategy=strategy) for strategy in ("sync", "sync-easgd")},
    **{
        f"of_two/{pair}": partial(of_two_ranks, strategy=pair.split(" to ")[0], other=pair.split(" to ")[1])
        for pair in (*TO_ANOTHER, *TO_EQUAL)
    },
    **{
        f"distributed_of_two/{strategy}": partial(distributed_of_two_ranks, strategy=strategy)
        for strategy in ("sync", "sync-easgd")
    },
}

if __name__ == "__main__":
    serve_rank({**SCENARIOS, **OF_TWO})
