"""Workers at a center that ask for their batches: a slow one takes fewer, and none is lost or taken twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.multiproc.command import Ended
from tests.multiproc.script_run import run_script

NUM_SAMPLES, BATCH = 23, 2

BEGIN = f"""
import json
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
import samovar
from samovar.core.errors import SamovarError

def refused(call, *given, **named):
    try:
        call(*given, **named)
    except SamovarError as error:
        return f"{{type(error).__name__}}: {{error}}"
    raise AssertionError("not refused")

def step():
    optimizer.zero_grad()
    replica.backward(model(torch.ones(2, 4)).sum())
    replica.step()

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data = TensorDataset(torch.arange({NUM_SAMPLES}))
"""


def told(ended: Ended, num_ranks: int = 2) -> list[Any]:
    assert ended.return_code == 0, ended.errors
    lines = sorted(line for line in ended.output.splitlines() if "told " in line)
    assert len(lines) == num_ranks
    return [json.loads(line.partition("told ")[2]) for line in lines]


@pytest.mark.parametrize("num_loader_workers", [0, 2])
def test_a_slow_worker_takes_fewer_batches_and_every_sample_is_taken_once(
    tmp_path: Path, num_loader_workers: int
) -> None:
    """Rank 1 stays with its first batch until rank 0 has no more."""
    text = f"""
replica = samovar.replicate(model, optimizer, "async-easgd", recipe="none")
loader = DataLoader(data, batch_size={BATCH}, shuffle=True, num_workers={num_loader_workers})
shard = replica.shard(loader, on_demand=True)
assert shard is replica.shard(loader, on_demand=True) is not replica.shard(loader)
epochs, places = [], [shard.epochs_done]
for epoch in range(3):
    epochs.append([])
    for (samples,) in shard:
        if epoch == 0 and not epochs[0]:
            tell("first")
            await_all("first")
            if rank == 1:
                await_all("ended", [0])
            inside, middle = refused(replica.state_dict), shard.epochs_done
        epochs[-1] += samples.tolist()
        step()
    tell("ended" if epoch == 0 else f"ended-{{epoch}}")
    places.append(shard.epochs_done)
state = replica.state_dict()
replica.finish()
told = {{"epochs": epochs, "places": places, "middle": middle, "inside": inside, "len": len(shard)}}
print("told", json.dumps({{**told, "saved": state["epochs"][0]}}))
"""
    ranks = told(run_script(tmp_path, BEGIN + text, 2, "--oversubscribe"))
    for epoch in range(3):
        taken = ranks[0]["epochs"][epoch] + ranks[1]["epochs"][epoch]
        assert sorted(taken) == list(range(NUM_SAMPLES))
    assert len(ranks[1]["epochs"][0]) <= BATCH * (1 + 2 * num_loader_workers)  # those that its loader had read ahead
    assert ranks[0]["epochs"][0] != sorted(ranks[0]["epochs"][0])
    for rank in ranks:
        assert rank["places"] == [0, 1, 2, 3]
        assert 0 < rank["middle"] <= 1
        assert rank["inside"].startswith("SamovarError: state_dict(): a loop over an on-demand shard is under way")
        assert (rank["len"], rank["saved"]) == (6, 3)


def test_the_next_epoch_follows_a_state_that_was_saved_between_two(tmp_path: Path) -> None:
    """In one process, so the same numbers of loops come again."""
    text = f"""
replica = samovar.replicate(model, optimizer, "async-sgd", recipe="none")
shard = replica.shard(DataLoader(data, batch_size={BATCH}, shuffle=True), on_demand=True)
def epoch():
    seen = []
    for (samples,) in shard:
        seen += samples.tolist()
        step()
    return seen
first, state, second = epoch(), replica.state_dict(), epoch()
replica.load_state_dict(state)
print("told", json.dumps([first, second, epoch()]))
replica.finish()
"""
    ((first, second, again),) = told(run_script(tmp_path, BEGIN + text, 1), 1)
    assert sorted(first) == sorted(second) == list(range(NUM_SAMPLES))
    assert second == again
    assert first != second


def test_what_cannot_be_dealt_is_refused(tmp_path: Path) -> None:
    text = """
class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(9))

replica = samovar.replicate(model, optimizer, "shm-easgd", recipe="none")
told = [refused(replica.shard, DataLoader(Stream()), on_demand=True)]
other = replica.shard(DataLoader(data, batch_size=2 + rank), on_demand=True)
if rank == 0:
    seen = sum(len(samples) for (samples,) in other)
    assert seen == len(data), seen
    tell("order")
else:
    await_all("order", [0])
    told.append(refused(next, iter(other)))
replica.finish()
print("told", json.dumps([rank, *told]))
"""
    first, second = told(run_script(tmp_path, BEGIN + text, 2, "--oversubscribe"))
    stream = "InputError: shard: on_demand needs a data set with a length, and got a stream; leave it out"
    assert [first, second[:2]] == [[0, stream], [1, stream]]
    assert second[2].startswith("ReplicasDiffer: rank 1: shard: on_demand: another rank divides this epoch in another ")


def test_ranks_that_are_started_again_alone_do_not_count_batches(tmp_path: Path) -> None:
    text = """
replica = samovar.replicate(model, optimizer, "shm-easgd", recipe="none")
shard = replica.shard(DataLoader(data), on_demand=True)
print("told", json.dumps([rank, refused(next, iter(shard))]))
replica.finish()
"""
    for _, message in told(run_script(tmp_path, BEGIN + text, 2, "--oversubscribe", "--keep-going")):
        assert message.startswith("InputError: shard: on_demand: under samovar run --keep-going the count of batches ")
