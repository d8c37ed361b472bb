"""Weights and states that come into a replica's model: those that do not fit, or past a center, are refused."""

import copy
import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.api.state import from_arrays
from samovar.core.errors import InputError, SamovarError
from samovar.strategies.config import StrategyConfig


def sgd(model: nn.Module, momentum: float = 0.9) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)


def replica_of(
    team: ProcessGroup, model: nn.Module, optimizer: torch.optim.Optimizer, strategy: str = "sync"
) -> Replica:
    return Replica(model, optimizer, team, StrategyConfig(name=strategy), 5.0)


def _of_another_shape() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 5))
    return model, sgd(model)


def _of_other_groups() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    return model, torch.optim.SGD([{"params": part.parameters()} for part in model], lr=0.1, momentum=0.9)


def _of_another_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    return model, torch.optim.AdamW(model.parameters())


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (_of_another_shape, r"shape of '1\.weight': \(2, 2\) there, \(5, 2\) here; build the model"),
        (_of_other_groups, r"not of SGD: groups of \[\[4\]\] parameters there, \[\[2, 2\]\] here; settings .*: \[\]"),
        (
            _of_another_optimizer,
            r"not of AdamW: .* settings that it lacks: \['betas', 'eps'\]\. Give replicate the opt",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_nothing_is_loaded(
    team: ProcessGroup, made: Any, sentence: str, tmp_path: Path
) -> None:
    saved = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    replica_of(team, saved, sgd(saved)).save(tmp_path / "state")
    model, optimizer = made()
    before = from_arrays([model.state_dict(), optimizer.state_dict()["param_groups"]])
    with pytest.raises(InputError, match=sentence) as refused:
        replica_of(team, model, optimizer).load(tmp_path / "state")
    assert "\n" not in str(refused.value)
    assert optimizer.state_dict()["param_groups"] == before[1]
    assert all(torch.equal(value, before[0][name]) for name, value in model.state_dict().items())


def test_a_schedulers_settings_and_a_switch_that_torch_has_added_do_not_keep_a_state_out(team: ProcessGroup) -> None:
    model = nn.Linear(3, 2)
    optimizer = sgd(model)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state = replica_of(team, model, optimizer).state_dict()
    del state["optimizer"]["param_groups"][0]["fused"]
    other = nn.Linear(3, 2)
    replica_of(team, other, sgd(other)).load_state_dict(state)
    assert torch.equal(other.weight, model.weight)


WITH_CENTER = ("diloco", "slowmo", "sync-easgd", "round-robin-easgd", "shm-easgd", "async-easgd")


@pytest.mark.parametrize("strategy", ["sync", "local-sgd", *WITH_CENTER])
def test_weights_that_a_center_would_not_see_are_not_loaded(team: ProcessGroup, strategy: str, tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    replica = replica_of(team, model, sgd(model), strategy)
    ones = {name: torch.ones_like(value) for name, value in model.state_dict().items()}
    for module, prefix in ((model, ""), (model[0], "0.")):
        before = model[0].weight.detach().clone()
        own = {name.removeprefix(prefix): value for name, value in ones.items() if name.startswith(prefix)}
        refused = pytest.raises(SamovarError, match=r"the strategy's center would not see these weights; load them bef")
        with refused if strategy in WITH_CENTER else nullcontext():
            module.load_state_dict(own)
        assert torch.equal(model[0].weight, before if strategy in WITH_CENTER else ones["0.weight"])
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied.load_state_dict(ones)
    replica.backward(model(torch.ones(1, 3)).sum())
    replica.step()
    replica.save(tmp_path / "state")
    replica.load(tmp_path / "state")
    with replica.evaluating():
        model.load_state_dict(ones)
    if strategy in WITH_CENTER:
        with pytest.raises(SamovarError, match="would not see"):
            model.load_state_dict(ones)
    replica.finish()
    model.load_state_dict(ones)
    replica.close()
    model.load_state_dict(ones)
    assert not model._load_state_dict_pre_hooks


@pytest.mark.parametrize("strategy", ["sync", "local-sgd", "async-sgd", *WITH_CENTER])
def test_a_workers_own_weights_leave_the_model_with_a_word(
    team: ProcessGroup, strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, and only if others count: the weights of a lone worker of local-sgd are the mean of all."""
    model: Any = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    replica = replica_of(team, model, sgd(model, momentum=0.0), strategy)
    replica.backward(model(torch.ones(1, 3)).sum())
    replica.step()
    replica.save(tmp_path / "state")
    replica.load_state_dict(replica.state_dict())
    with replica.evaluating():
        model.state_dict()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied.state_dict()
    assert "own weights" not in capsys.readouterr().err
    model.state_dict()
    model.state_dict()
    told = "model.state_dict() outside of evaluating(): these are this worker's own weights"
    assert capsys.readouterr().err.count(told) == (strategy not in ("sync", "local-sgd"))
    replica.finish()
    replica.close()
    model.state_dict()
    assert "own weights" not in capsys.readouterr().err


def test_a_state_that_lacks_gradients_of_a_step_under_way_is_named(
    team: ProcessGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Linear(3, 2)
    replica = replica_of(team, model, sgd(model))
    for more in (True, False):
        replica.backward(model(torch.ones(1, 3)).sum(), more=more)
        replica.state_dict()
        assert "before step(): the gradients since the last step" in capsys.readouterr().err
    replica.step()
    replica.state_dict()
    assert "before step()" not in capsys.readouterr().err


def test_weights_may_be_evaluated_in_the_middle_of_the_first_step(team: ProcessGroup) -> None:
    model = nn.Linear(3, 2)
    replica = replica_of(team, model, sgd(model))
    replica.backward(model(torch.ones(1, 3)).sum(), more=True)
    with replica.evaluating():
        before = copy.deepcopy(model.state_dict())
    replica.backward(model(torch.ones(1, 3)).sum())
    with pytest.raises(SamovarError, match=r"2 calls of replica\.backward\(\) and none"), replica.evaluating():
        pass
    replica.step()
    assert not torch.equal(before["weight"], model.weight)


def test_numbers_of_numpy_are_saved_as_numbers(team: ProcessGroup, tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    replica = replica_of(team, model, sgd(model))
    replica.save(tmp_path / "state", {"best": np.float32(0.5), "epoch": np.int64(3), "is_best": np.bool_(True)})
    assert repr(replica.load(tmp_path / "state")) == "{'best': 0.5, 'epoch': 3, 'is_best': True}"


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("made", [torch.jit.script, lambda model: torch.jit.trace(model, torch.ones(1, 3))])
def test_a_model_of_torch_script_is_trained_at_a_center(team: ProcessGroup, made: Any) -> None:
    model = made(nn.Linear(3, 2))
    replica_of(team, model, sgd(model), "sync-easgd").close()
    replica_of(team, model, sgd(model), "sync-easgd").close()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("strategy", ["sync", "local-sgd"])
def test_a_run_continues_with_the_same_bits_whatever_the_order_of_its_weights_in_memory(
    team: ProcessGroup, tmp_path: Path, strategy: str, fused: bool
) -> None:
    """Fused optimizers walk weights and momentum through raw pointers."""
    x = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3))
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model, torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)

    def train(replica: Replica, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            replica.backward(model(x).square().mean())
            replica.step()

    whole, first, second = made(), made(), made()
    replica = replica_of(team, *whole, strategy)
    for _ in range(2):
        train(replica, *whole)
    train(before := replica_of(team, *first, strategy), *first)
    before.save(tmp_path / "state")
    after = replica_of(team, *second, strategy)
    after.load(tmp_path / "state")
    train(after, *second)
    pairs = zip(whole[0].parameters(), second[0].parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_an_optimizer_that_loads_a_state_by_itself_follows_the_order_of_weights_in_memory(team: ProcessGroup) -> None:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer, replica: Replica | None = None) -> None:
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 3)).square().sum()
            loss.backward() if replica is None else replica.backward(loss)
            (replica or optimizer).step()

    models = nn.Linear(3, 2), nn.Linear(3, 2)
    for model in models:
        model.weight = nn.Parameter(torch.arange(6.0).reshape(3, 2).t())  # which an exchange of weights lays out anew
    theirs, ours = (torch.optim.AdamW(model.parameters(), fused=True) for model in models)
    train(models[0], theirs)
    models[1].load_state_dict(models[0].state_dict())
    replica = replica_of(team, models[1], ours, "local-sgd")
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    train(models[0], theirs)
    train(models[1], ours, replica)
    assert torch.allclose(models[0].weight, models[1].weight)


def test_a_recipe_s_rates_go_back_at_close_and_hold_after_a_load(team: ProcessGroup) -> None:
    config, model = StrategyConfig("diloco"), nn.Linear(3, 2)
    optimizer, recipe = sgd(model, 0.0), config.traits.recipe
    for _ in range(2):
        with Replica(model, optimizer, team, config, 5.0, recipe=recipe):
            assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 7)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    with Replica(model, optimizer, team, StrategyConfig(), 5.0) as plain:
        state = plain.state_dict()
    with Replica(model, optimizer, team, config, 5.0, recipe=recipe) as replica:
        replica.load_state_dict(state)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 7)
