"""A replica at boxes of this process: the same weights from one box and from several, and what others see of it."""

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from samovar.api.center import BoxChoice
from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.box.board import Board
from samovar.box.endpoints import Endpoints
from samovar.box.joining import Endpoint, look_at
from samovar.box.local import LocalBox
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, RankFailed, SamovarError
from samovar.strategies.box_terms import BoxWord, Readiness
from samovar.strategies.config import StrategyConfig
from samovar.transports.keys import make_key
from tests.unit.box.listening_box import Box

SAMPLES, BATCH = 40, 5


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Endpoint]]:
    """A box that is near, and two that are far."""
    make_key(tmp_path / "key")
    with ExitStack() as stack:
        found = []
        for kind in ("local", "remote", "remote"):
            box = Box(tmp_path / "key")
            stack.callback(box.close)
            found.append(box.places[kind])
        yield found


def trained(team: ProcessGroup, strategy: str, boxes: list[Endpoint], buffer: str) -> list[torch.Tensor]:
    """The weights that count after three epochs."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = StrategyConfig(name=strategy, sync_period_steps=2)
    replica = Replica(model, optimizer, team, config, 60.0, BoxChoice(Endpoints(tuple(boxes)), buffer, joins=False))
    x = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(4))
    shard = replica.shard(DataLoader(TensorDataset(x), batch_size=BATCH))
    for _ in range(3):
        for (batch,) in shard:
            optimizer.zero_grad()
            replica.backward(model(batch).square().mean())
            replica.step()
    replica.finish()
    replica.close()  # as at the process's end, which the boxes do not outlive here
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("strategy", ["async-easgd", "shm-easgd", "async-msgd"])
def test_a_center_over_several_boxes_has_the_bits_of_one(
    team: ProcessGroup, places: list[Endpoint], strategy: str
) -> None:
    found = [trained(team, strategy, boxes, f"b{number}") for number, boxes in enumerate((places[:1], places))]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_others_see_its_loss_and_speed(team: ProcessGroup, places: list[Endpoint]) -> None:
    trained(team, "async-easgd", places[:2], "seen")
    for place in places[:2]:
        (row,) = look_at(place, "seen", "test", Deadline.after(60)).rows
        assert row.progress.finished
        assert (row.progress.steps, row.progress.samples) == (3 * SAMPLES // BATCH, 3 * SAMPLES)
        assert row.progress.samples_per_s > 0
        assert math.isfinite(row.progress.loss)


def test_a_forked_process_that_closes_leaves_its_parent_the_seat(team: ProcessGroup, places: list[Endpoint]) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    choice = BoxChoice(Endpoints(tuple(places[1:2])), "forked", joins=False)
    with Replica(model, optimizer, team, StrategyConfig("async-sgd"), 60.0, choice) as replica:
        child = os.fork()
        if not child:
            try:
                replica._exchange._duties.leave()  # type: ignore[attr-defined]
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        (row,) = look_at(places[1], "forked", "test", Deadline.after(60)).rows
        assert row.is_alive


def test_a_job_that_comes_to_a_box_tells_the_groups_and_the_rate_that_it_uses(
    team: ProcessGroup, places: list[Endpoint]
) -> None:
    """The fourth worker is a group of its own, though the default for four workers is groups of two."""
    with ExitStack() as stack:
        for number in range(4):
            model = nn.Linear(3, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            choice = BoxChoice(Endpoints(tuple(places[:1])), "groups", joins=number > 0)
            replica = Replica(model, optimizer, team, StrategyConfig("hybrid-easgd"), 60.0, choice)
            stack.callback(replica.close)
        used = replica._exchange._hybrid  # type: ignore[attr-defined]
        told = replica.config
        assert (told.group_size, told.moving_rate) == (used.group_size, used.moving_rate) == (1, 0.125)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (
            ("shm-easgd", None),
            ("async-easgd", None),
            "is trained with shm-easgd, this run has async-easgd; give strategy",
        ),
        (("async-easgd", None), ("async-sgd", None), "is trained with async-easgd, this run has async-sgd"),
        (
            ("async-msgd", 0.9),
            ("async-msgd", 0.5),
            "has momentum 0.9 at its center, this run 0.5; give center_momentum",
        ),
        (("async-msgd", 0.9), ("async-msgd", 0.9), ""),
    ],
)
def test_a_job_trains_at_a_buffer_by_its_terms(
    team: ProcessGroup,
    places: list[Endpoint],
    first: tuple[str, float | None],
    second: tuple[str, float | None],
    said: str,
) -> None:
    for (strategy, momentum), joins in ((first, False), (second, True)):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        config = StrategyConfig(strategy, center_momentum=momentum)
        choice = BoxChoice(Endpoints(tuple(places[1:2])), "b", joins=joins)
        with pytest.raises(InputError, match=said) if joins and said else nullcontext():
            Replica(model, optimizer, team, config, 60.0, choice).close()


def test_a_box_that_does_not_answer_is_waited_for_as_long_as_was_said(team: ProcessGroup, tmp_path: Path) -> None:
    """To look at the others, between exchanges, has the time of a wait of this job."""
    make_key(tmp_path / "key")
    short = ProcessGroup(team.collectives, 1.5)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with closing(Box(tmp_path / "key")) as box:
        choice = BoxChoice(Endpoints((box.places["remote"],)), "b", joins=False)
        config = StrategyConfig("shm-easgd", sync_period_steps=100_000)
        replica = Replica(model, optimizer, short, config, 1.5, choice)
        box.hang_up()

        def train() -> None:
            for _ in range(50_000):
                replica.backward(model(torch.ones(1, 3)).sum())
                replica.step()

        with pytest.raises(SamovarError, match=r"cannot be reached within 1\.5 s"):
            train()
        replica.close()


def test_a_buffer_whose_first_weights_will_not_come_is_refused(team: ProcessGroup, places: list[Endpoint]) -> None:
    """Zeros are no weights: who was to fill it has said that it cannot."""
    trained(team, "async-easgd", places[:1], "given-up")
    name = places[0].name
    assert name is not None
    with LocalBox(name).attach("given-up", Deadline.after(60)) as buffer:
        Board(buffer.board).set_word(BoxWord.IS_READY, Readiness.GIVEN_UP)
    model = nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = StrategyConfig(name="async-easgd", sync_period_steps=2)
    choice = BoxChoice(Endpoints(tuple(places[:1])), "given-up", joins=True)
    with pytest.raises(RankFailed, match="gets no first weights: the rank that should write them has ended for good"):
        Replica(model, optimizer, team, config, 60.0, choice)
