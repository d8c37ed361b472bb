"""Mistakes in a training loop of one's own: none trains wrong without a word, and every rank says what was left out."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.multiproc.command import run
from tests.multiproc.replicate_ranks import run_ranks, succeeded

PROGRAM = "tests.multiproc.replicate_mistakes_rank"
TOLERANCE = 1e-6
WORLD_SIZES = [2, pytest.param(3, marks=pytest.mark.slow)]
BACKWARD = "call replica.backward(loss) in place of loss.backward()"
STEP = "call replica.step(), or replica.step(lambda: scaler.step(optimizer))"
NEVER = "call replica.step() in place of optimizer.step()"
OTHERS = "other parameters train than at replicate(): one was added, removed or unfrozen"
PLACES = "ranks are at different places"
ONE_SAVE = "give every rank the file that it saved, all of one save"
EQUAL = "the weights of ranks [1] differ from those of rank 0"

REFUSED = {
    "plain_backward": BACKWARD,
    "failed_backward": "the backward pass before this one failed when its exchange with the other ranks had begun",
    "one_more_pass": "ranks [1] exchange gradients more or less often in a step than rank 0",
    "more_on_every_part": "leave more=True out in the last part of a step",
    "late_backward": "use replica.backward(loss, more=True) for all passes of a step but the last",
    "backward_in_step": "of a step but the last, and before step()",
    "finish_without_step": NEVER,
    "loads_on_one_rank": PLACES,
    "loads_on_one_rank/local-sgd": PLACES,
    "loads_mixed_steps": ONE_SAVE,
    "loads_mixed_runs/shm-easgd": "are of another run than that of rank 0",
    "loads_mixed_runs": ONE_SAVE,
    "shared_later": "share_memory(), of the model or of a gradient, has moved the gradients",
    "doubled_later": "exchanges add in float32, which would round it",
    "differs_at_save": EQUAL,
    "differs_when_asked": EQUAL,
    "differs_at_first": EQUAL,
    "differs_at_finish": EQUAL,
    "differs_at_evaluating": EQUAL,
    "added_later/local-sgd": OTHERS,
    "added_later/sync-easgd": OTHERS,
    "wrapped_later": "DistributedDataParallel got a model that samovar.replicate has already",
    "wrapped_before": "replicate: a DistributedDataParallel has this model already",
    "sync_batch_norm": "layer '1' is a SyncBatchNorm",
    "parameter_in_two_optimizers": "give each parameter to one",
    "plain_step/shm-easgd": STEP,
    **{
        f"{name}/{strategy}": sentence
        for name, sentence in {"plain_step": STEP, "step_of_step": STEP, "evaluating_without_step": NEVER}.items()
        for strategy in ("sync", "local-sgd", "sync-easgd")
    },
}
WORKING = ("several_optimizers", "several_replicas")


@cache
def results(world_size: int) -> dict[str, list[Any]]:
    return run_ranks(PROGRAM, world_size)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_one_sentence_on_every_rank(name: str, world_size: int) -> None:
    for result in succeeded(results(world_size), name):
        assert REFUSED[name] in result["text"]
        assert "\n" not in result["text"]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(("name", "one"), [("rank 0 loads alone/shm-easgd", 0), ("rank 1 loads alone/async-easgd", 1)])
def test_a_rank_that_loads_alone_at_a_center_is_told_and_the_others_go_on(name: str, one: int, world_size: int) -> None:
    for rank, result in enumerate(succeeded(results(world_size), name)):
        expected = "all ranks make this call together." if rank == one else "nothing was said"
        assert expected in result["text"], rank


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("warned/same data", "all ranks had the same loss in each of the first steps, so they read the same data"),
        ("warned/early", "the center that is evaluated lacks all steps so far: the first exchange comes after step 8"),
        ("warned/sync", ""),
        ("warned/closure", "the function given to step() stepped no optimizer in 8 steps; give none, or one that "),
        ("warned/update", ""),
    ],
)
def test_steps_that_teach_less_than_they_seem_to_are_named_once(name: str, sentence: str) -> None:
    first, *others = succeeded(results(2), name)
    assert first["text"].count("warning") == bool(sentence)
    assert sentence in first["text"]
    assert [other["text"] for other in others] == [""]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", WORKING)
def test_several_optimizers_train_as_one(name: str, world_size: int) -> None:
    for result in succeeded(results(world_size), name):
        assert result["distance"] < TOLERANCE


def test_a_copy_of_the_model_belongs_to_nobody() -> None:
    first, second = succeeded(results(2), "copies_are_free")
    assert first["values"] == second["values"]


UNGUARDED = """
import samovar, torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(3, 2)
replica = samovar.replicate(model, torch.optim.SGD(model.parameters(), 0.1))
loader = DataLoader(torch.zeros(8, 3), 2, num_workers=1, multiprocessing_context="spawn")
for batch in replica.shard(loader):
    pass
"""


@pytest.mark.slow
def test_a_loader_s_process_that_runs_the_script_again_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(UNGUARDED)
    ended = run("run", "-n", 1, "loop.py", folder=tmp_path)
    assert ended.return_code == 1
    assert "runs this script again; put what the script does under `if __name__ == '__main__':`" in ended.errors
