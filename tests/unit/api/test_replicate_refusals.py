"""What `samovar.replicate` refuses, with the reason."""

import copy
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samovar
from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.core.errors import InputError, SamovarError
from samovar.frontends.torch.optimizers import Optimizers
from samovar.frontends.torch.parameters import require_dense_gradients, trained_parameters
from samovar.strategies.config import StrategyConfig


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class DistributedDataParallel(nn.Module):
    """Known by its name, so that torch.distributed need not be imported."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 2)


def _frozen() -> nn.Module:
    return nn.Linear(3, 2).requires_grad_(False)


def _spread() -> nn.Module:
    model = nn.Linear(3, 2)
    model.register_buffer("spread", torch.ones(1, 3).expand(4, 3))
    return model


REFUSED = {
    "LBFGS evaluates the loss several times": (lambda: nn.Linear(3, 2), lambda m: torch.optim.LBFGS(m.parameters())),
    "exchanges add in float32": (lambda: nn.Linear(3, 2).double(), sgd),
    "updates 2 parameters that the model does not have": (lambda: nn.Linear(3, 2), lambda _: sgd(nn.Linear(3, 2))),
    "updates no parameter of the model": (_frozen, sgd),
    "wrapped in DistributedDataParallel": (DistributedDataParallel, sgd),
    "run one forward pass before": (lambda: nn.LazyLinear(2), lambda _: sgd(nn.Linear(3, 2))),
    "models are trained on cpu or cuda here": (lambda: nn.Linear(3, 2, device="meta"), sgd),
    "elements of 'spread' share memory": (_spread, sgd),
    "give a torch.nn.Module": (lambda: "net", lambda _: sgd(nn.Linear(3, 2))),
    "give a torch.optim optimizer": (lambda: nn.Linear(3, 2), lambda _: "sgd"),
}


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_replicated_is_refused_with_the_reason(words: str) -> None:
    made: tuple[Any, Any] = REFUSED[words]
    model = made[0]()
    with pytest.raises(InputError, match=re.escape(words)):
        trained_parameters(model, Optimizers(made[1](model)))


def test_a_sparse_gradient_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match=r"layer '0' makes sparse gradients.*sparse=False"):
        require_dense_gradients(nn.Sequential(nn.Embedding(4, 2, sparse=True)))


def test_sparse_gradients_train_where_weights_are_exchanged(team: ProcessGroup) -> None:
    ours = nn.Embedding(4, 2, sparse=True)
    theirs = copy.deepcopy(ours)
    optimizer, other = (torch.optim.SparseAdam(model.parameters()) for model in (ours, theirs))
    replica = Replica(ours, optimizer, team, StrategyConfig(name="local-sgd"), 5.0)
    for row in (torch.tensor([1]), torch.tensor([1, 3])):
        optimizer.zero_grad()
        replica.backward(ours(row).square().sum())
        replica.step()
        other.zero_grad()
        theirs(row).square().sum().backward()
        other.step()
    assert torch.equal(ours.weight, theirs.weight)
    replica.load_state_dict(replica.state_dict())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sync_periods": 3}, "replicate: there is no argument sync_periods; did you mean 'sync_period"),
        ({"recipie": "auto"}, "replicate: there is no argument recipie; did you mean 'recipe'?"),
        ({"timeout": 5.0}, "replicate: there is no argument timeout; did you mean 'timeout_s'?"),
        ({"sync_period_steps": 2, "source": "x"}, "replicate: there is no argument source; "),
        ({"sync_period": "3"}, "sync_period_steps: got '3'; give a value of type int"),
    ],
)
def test_a_wrong_argument_is_named_with_the_nearest_that_exists(settings: dict[str, Any], sentence: str) -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(InputError, match=re.escape(sentence)):
        samovar.replicate(model, sgd(model), "local-sgd", **settings)


def test_a_limit_that_is_no_time_is_refused() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(InputError, match="timeout_s is -1"):
        samovar.replicate(model, sgd(model), timeout_s=-1)


def test_what_belongs_to_a_box_is_refused_without_one(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    for settings, words in (
        ({"join": True}, "join=True belongs to a box"),
        ({"buffer": "lenet"}, "buffer='lenet' belongs to a box"),
        ({"box": "b o x"}, "b o x"),
        ({"box": Path("b o x")}, "b o x"),
        ({"box": "host:4711"}, "wants its key"),
        ({"box": "mine", "key_file": tmp_path / "key"}, "box 'mine' is one of this host"),
    ):
        with pytest.raises(InputError, match=words):
            samovar.replicate(model, sgd(model), "shm-easgd", **settings)
    for strategy in ("sync", "round-robin-easgd"):
        with pytest.raises(InputError, match=f"{strategy} has no center for a box"):
            samovar.replicate(model, sgd(model), strategy, box="mine")


@pytest.mark.parametrize(
    ("strategy", "settings", "sentence"),
    [
        ("sync", {"sync_period_steps": 8}, "sync_period_steps is not a setting of strategy sync: leave it out"),
        ("sync", {"bucket_size": "some"}, "bucket_size: got 'some'"),
        ("sync", {"always_compresses": True}, "always_compresses: there is nothing to compress; give compress too"),
        ("sync", {"collective": "star"}, "collective"),
        ("sync-easgd", {"moving_rate": 2.0}, "moving_rate"),
        (
            "sync",
            {"timeout_s": timedelta(minutes=1)},
            r"timeout_s is datetime.timedelta\(.*\); give seconds, more than 0",
        ),
        ("sync", {"timeout_s": None}, "timeout_s is None; give seconds"),
        ("sync", {"timeout_s": "60"}, "timeout_s is '60'; give seconds"),
        ("sync", {"metrics": True}, "metrics: got 'True'; give a folder"),
        (
            "sync",
            {"trace": (1, 2), "metrics": "runs"},
            r"trace '\(1, 2\)': give the first and the last step, .*steps=20-30",
        ),
        ("sync", {"compare_weights_steps": "2"}, "compare_weights_steps is '2'; give a whole number from 1 on"),
        ("sync", {"compare_weights_steps": -3}, "compare_weights_steps is -3; give a whole number from 1 on"),
        ("sync-easgd", {"compare_weights_steps": 3}, "sync-easgd keeps no weights equal; leave it out"),
        ("hybrid-easgd", {"compare_weights_steps": 3}, "hybrid-easgd keeps no weights equal; leave it out"),
        ("local-sgd", {"sync_period": 0}, "sync_period_steps: got 0 steps; give at least 1"),
        ("local-sgd", {"sync_period": 2, "sync_period_steps": 2}, "sync_period_steps is another spelling of"),
        ("nowhere:Rule", {}, "strategy nowhere:Rule: there is no module 'nowhere'"),
        (int, {}, "int.*is not a strategy; decorate a class"),
        ("sync-easgd", {"compress": "bf16", "variant": "broadcast"}, "compress bf16: variant broadcast sends weights"),
    ],
)
def test_settings_are_refused_by_their_names_in_python(strategy: Any, settings: dict[str, Any], sentence: str) -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(InputError, match=sentence) as refused:
        samovar.replicate(model, sgd(model), strategy, **settings)
    assert "--" not in str(refused.value)


@pytest.mark.parametrize("seed", [None, -1, 1.5])
def test_a_seed_of_a_shard_is_a_whole_number(team: ProcessGroup, seed: Any) -> None:
    model = nn.Linear(3, 2)
    replica = Replica(model, sgd(model), team, StrategyConfig("sync"), 5.0)
    with pytest.raises(InputError, match=f"shard: seed is {seed}; give a whole number from 0 on"):
        replica.shard(DataLoader(TensorDataset(torch.ones(4, 3))), seed=seed)


def test_workers_that_step_together_do_not_take_batches_on_demand(team: ProcessGroup) -> None:
    model = nn.Linear(3, 2)
    replica = Replica(model, sgd(model), team, StrategyConfig("local-sgd"), 5.0)
    with pytest.raises(InputError, match="shard: on_demand: with local-sgd all ranks take the same number of steps"):
        replica.shard(DataLoader(TensorDataset(torch.ones(4, 3))), on_demand=True)


def test_other_replicas_of_a_pass_are_each_given_once(team: ProcessGroup) -> None:
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    first, second = (Replica(model, sgd(model), team, StrategyConfig(name="sync"), 5.0) for model in models)
    x = torch.ones(1, 3)
    for also in ([first], [second, second], second, [3], None):
        with pytest.raises(InputError, match=f"got also={re.escape(repr(also))}; give a list of other replicas"):
            first.backward(sum(model(x).sum() for model in models), also=also)  # type: ignore[arg-type]
    first.backward(sum(model(x).sum() for model in models), also=[second])
    first.step()
    second.step()


@pytest.mark.parametrize("strategy", ["sync", "local-sgd"])
def test_no_other_optimizer_steps_with_the_parameters_of_a_replica(team: ProcessGroup, strategy: str) -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    replica = Replica(model, sgd(model), team, StrategyConfig(name=strategy), 5.0)
    of_both, x = torch.optim.Adam([*model.parameters(), *other.parameters()]), torch.ones(1, 3)
    before = model.weight.detach().clone()
    other(x).sum().backward()
    of_both.step()  # nothing of the replica changes
    model(x).sum().backward()
    with pytest.raises(
        SamovarError, match=r"Adam\.step\(\) was called outside .* another optimizer of these parameters"
    ):
        of_both.step()
    assert torch.equal(model.weight, before)
    replica.backward(model(x).sum())
    replica.step(of_both.step)
    replica.close()
    model(x).sum().backward()
    of_both.step()


@pytest.mark.parametrize("strategy", ["sync", "local-sgd"])
def test_an_optimizer_that_gets_as_many_other_parameters_is_refused(team: ProcessGroup, strategy: str) -> None:
    """As loops that train one block of layers after another do: nothing would exchange the second."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = sgd(model[0])
    replica = Replica(model, optimizer, team, StrategyConfig(name=strategy), 5.0)
    optimizer.param_groups[0]["params"] = list(model[1].parameters())
    with pytest.raises(SamovarError, match="other parameters train than at replicate"):
        replica.backward(model(torch.ones(1, 3)).sum())
