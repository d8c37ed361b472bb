"""Checkpoints in one file, and by torch.distributed.checkpoint: the same bits afterwards, or one sentence."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from tests.multiproc.replicate_ranks import run_ranks, succeeded
from tests.multiproc.replicate_save_rank import AT_A_CENTER, EQUAL_BITS, SAVED_AT, TO_ANOTHER, TO_EQUAL

PROGRAM = "tests.multiproc.replicate_save_rank"
SIZES = [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3))]
SEVERAL = [2, pytest.param(3, marks=pytest.mark.slow)]
Results = Callable[[int], dict[str, list[Any]]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """The results by number of ranks; two ranks save what the others load, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAVED", str(tmp_path_factory.mktemp("saved")))

        @cache
        def of(world_size: int) -> dict[str, list[Any]]:
            if world_size != 2:
                of(2)
            return run_ranks(PROGRAM, world_size)

        yield of


@pytest.mark.parametrize("strategy", EQUAL_BITS)
@pytest.mark.parametrize("world_size", SIZES)
def test_a_resumed_run_has_the_same_bits(results: Results, world_size: int, strategy: str) -> None:
    for rank, result in enumerate(succeeded(results(world_size), f"resumes/{strategy}")):
        assert result["ended"] == result["whole"] != result["read"]
        assert result["steps"] == SAVED_AT
        assert result["extra"] == f"{{'rank': {rank}, 'words': ('a', None, True), 0: inf}}"
        assert result["random"]


@pytest.mark.parametrize("strategy", AT_A_CENTER)
@pytest.mark.parametrize("world_size", SIZES)
def test_at_a_center_all_have_the_moment_of_the_save(results: Results, world_size: int, strategy: str) -> None:
    for rank, result in enumerate(succeeded(results(world_size), f"center/{strategy}")):
        assert result["center_read"] == result["center"]
        assert result["steps"] == SAVED_AT + rank
        if strategy == "shm-easgd":  # the others begin with a read of the center
            assert result["read"] == result["saved"]


@pytest.mark.parametrize("world_size", SIZES)
def test_another_number_of_ranks_begins_at_the_center_or_the_first_ranks_weights(
    results: Results, world_size: int
) -> None:
    for strategy in ("sync", "sync-easgd", *TO_ANOTHER):
        ranks = succeeded(results(world_size), f"of_two/{strategy}")
        assert [rank["rank"] for rank in ranks] == [number % 2 for number in range(world_size)]
        assert all(rank["steps"] == SAVED_AT and rank["moments"] > 0 for rank in ranks)
        if world_size != 2 or " to " in strategy:
            assert all(rank["read"] == ranks[0]["read"] for rank in ranks)


@pytest.mark.parametrize("pair", TO_EQUAL)
@pytest.mark.parametrize("world_size", SIZES)
def test_ranks_that_keep_equal_weights_keep_them_after_a_load_from_ranks_that_did_not(
    results: Results, world_size: int, pair: str
) -> None:
    ranks = succeeded(results(world_size), f"of_two/{pair}")
    assert all(rank["ended"] == ranks[0]["ended"] != rank["read"] for rank in ranks)


@pytest.mark.parametrize("world_size", SIZES)
def test_one_save_is_written_after_the_other(results: Results, world_size: int) -> None:
    for result in succeeded(results(world_size), "one_after_the_other"):
        assert result == [4, 4, ["last.safetensors"]]


@pytest.mark.parametrize("strategy", ["sync", "sync-easgd"])
@pytest.mark.parametrize("world_size", SIZES)
def test_torch_distributed_checkpoint(results: Results, world_size: int, strategy: str) -> None:
    for result in succeeded(results(world_size), f"distributed/{strategy}"):
        assert result["ended"] == result["whole"]
        assert result["steps"] == SAVED_AT
        assert result["own"] == [1.0, 1.0, 1.0]
    here, there = (succeeded(results(world_size), f"{kind}_two/{strategy}") for kind in ("distributed_of", "of"))
    for result, same in zip(here, there, strict=True):
        assert result["read"] == same["read"]
        assert result["moments"] == same["moments"]
        assert result["steps"] == same["steps"]


MISTAKES = {
    "cannot_be_saved": "save: extra/optimizer is a AdamW; a checkpoint holds numbers, strings",
    "no_folder": "a.safetensors cannot be written: its folder is a file",
    "two_paths": "save to another path than rank 0",
    "one_rank_saves": "ranks are at different places: rank 0 is at save() of replica 0; ",
    "missing": "none.safetensors does not exist",
    "damaged": "is damaged: tensor",
    "of_another_kind": "other.safetensors is not a checkpoint",
    "mixed": "give every rank the file that it saved, all of one save",
    "does_not_fit_on_one_rank": "load_state_dict: the state is of another model: shape of",
    "distributed_alone": "torch.distributed.checkpoint sees no process group",
    "distributed_cannot_be_saved": "kind is a type; a checkpoint holds numbers, strings",
    "distributed_missing": "No such file or directory; give the folder",
    "distributed_without_replica": "the checkpoint has these replicas: none",
    "given_itself": "samovar.DistributedState(replica, folder)",
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("world_size", SEVERAL)
def test_a_mistake_is_one_sentence_on_every_rank(results: Results, world_size: int, name: str) -> None:
    for result in succeeded(results(world_size), name):
        assert MISTAKES[name] in result["text"]
        assert "\n" not in result["text"]


@pytest.mark.parametrize("name", ["comes_out_at_the_next_save", "comes_out_at_close"])
@pytest.mark.parametrize("world_size", SEVERAL)
def test_an_error_of_the_writer_comes_out_on_every_rank(results: Results, world_size: int, name: str) -> None:
    first, *others = succeeded(results(world_size), name)
    assert "taken cannot be written: Is a directory" in first["text"]
    assert all("rank 0 could not write" in other["text"] for other in others)


@pytest.mark.parametrize("world_size", SEVERAL)
def test_where_others_have_no_data_or_do_not_come_a_rank_does_not_save(results: Results, world_size: int) -> None:
    expected = {
        "one_rank_has_data": f"the data of {world_size - 1} rank(s) has ended",
        "one_rank_saves/shm-easgd": "all ranks make this call together",
    }
    for name, sentence in expected.items():
        first, *others = succeeded(results(world_size), name)
        assert sentence in first["text"]
        assert all(other["text"] == "nothing was said" for other in others)
