"""`samovar.replicate` in one process: a script runs as it is."""

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, MultiStepLR, SequentialLR
from torch.utils._python_dispatch import TorchDispatchMode

from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.core.errors import InputError, NotFinite, SamovarError
from samovar.core.layout import LOOK_EVERY_STEPS
from samovar.strategies.catalog import STRATEGIES
from samovar.strategies.config import StrategyConfig

ADDING_STEPS = ("async-sgd", "async-msgd", "hogwild-sgd")  # their workers' optimizers have no momentum


def sgd(model: nn.Module, momentum: float = 0.9) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)


def data(steps: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return (torch.randn(5, 3, generator=generator) for _ in range(steps))


def replica_of(
    team: ProcessGroup, model: nn.Module, optimizer: torch.optim.Optimizer, strategy: str = "sync"
) -> Replica:
    return Replica(model, optimizer, team, StrategyConfig(name=strategy), 5.0)


@pytest.mark.parametrize("strategy", ["sync", "local-sgd"])
def test_one_process_trains_as_plain_torch(team: ProcessGroup, strategy: str) -> None:
    torch.manual_seed(1)
    model, plain = nn.Linear(3, 2), nn.Linear(3, 2)
    plain.load_state_dict(model.state_dict())
    optimizer, other = sgd(model), sgd(plain)
    replica = replica_of(team, model, optimizer, strategy)
    for x in data(10):
        optimizer.zero_grad()
        replica.backward(model(x).square().mean())
        replica.step()
        other.zero_grad()
        plain(x).square().mean().backward()
        other.step()
    assert torch.equal(model.weight, plain.weight)
    assert (replica.rank, replica.world_size, replica.is_first, replica.step_count) == (0, 1, True, 10)


class OwnRate(torch.optim.SGD):
    """As Adafactor of Transformers, which finds its learning rate itself."""

    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        for group in self.param_groups:
            with torch.no_grad():
                for parameter in group["params"]:
                    parameter.sub_(parameter.grad, alpha=0.1)


@pytest.mark.parametrize("strategy", ["sync", "async-sgd"])
def test_an_optimizer_may_have_neither_rate_nor_momentum(team: ProcessGroup, strategy: str) -> None:
    model = nn.Linear(3, 2)
    optimizer = OwnRate(model.parameters())
    optimizer.param_groups[0].update(lr=None, momentum=None, betas=(None, 0.999))
    replica = replica_of(team, model, optimizer, strategy)
    for x in data(3):
        optimizer.zero_grad()
        replica.backward(model(x).square().mean())
        replica.step()
    replica.load_state_dict(replica.state_dict())
    assert replica.step_count == 3


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_state_is_made_of_plain_tensors_and_numbers(team: ProcessGroup, strategy: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = sgd(model, 0.0 if strategy in ADDING_STEPS else 0.9)
    replica = replica_of(team, model, optimizer, strategy)
    for x in data(3):
        replica.backward(model(x).square().mean())
        replica.step()
    torch.save(replica.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    weight = model.get_parameter("0.weight")
    saved = weight.clone()
    with torch.no_grad():
        weight.zero_()
    replica.load_state_dict(state)
    assert torch.equal(weight, saved)
    assert replica.step_count == 3


class WithExtraState(nn.Linear):
    """A layer with state that is neither a parameter nor a buffer, as torch's `get_extra_state` describes it."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.seen: Any = {"count": 3, "shape": torch.Size([2, 1]), "sums": torch.ones(2)}

    def get_extra_state(self) -> Any:
        return self.seen

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


def test_extra_state_of_a_module_is_saved_and_loaded(team: ProcessGroup, tmp_path: Path) -> None:
    extra_state = WithExtraState()
    first, model = extra_state.seen, nn.Sequential(extra_state, nn.Linear(2, 2))
    replica = replica_of(team, model, sgd(model))
    replica.save(tmp_path / "state", torch.max(torch.ones(2), 0))
    extra = replica.load(tmp_path / "state")
    loaded = extra_state.seen
    assert loaded is not first
    assert (loaded["count"], tuple(loaded["shape"]), loaded["sums"].tolist()) == (3, (2, 1), [1.0, 1.0])
    assert [value.item() for value in extra] == [1.0, 0]


def test_a_schedule_that_was_loaded_goes_on_past_its_milestones(team: ProcessGroup, tmp_path: Path) -> None:
    """Torch keeps the milestones of such a schedule in a Counter, and asks it for what a dict has not."""
    rates = []
    for saves in (True, False):
        model = nn.Linear(3, 2)
        replica = replica_of(team, model, optimizer := sgd(model))
        parts = [ConstantLR(optimizer), MultiStepLR(optimizer, [1, 2])]
        schedule = SequentialLR(optimizer, parts, milestones=[2])
        if saves:
            replica.save(tmp_path / "state", schedule.state_dict())
        else:
            schedule.load_state_dict(replica.load(tmp_path / "state"))
        for _ in range(5):
            trained(replica, model, 1)
            schedule.step()
            rates.append(optimizer.param_groups[0]["lr"])
    assert rates[:5] == rates[5:]
    assert len(set(rates)) == 4


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.bfloat16, torch.bool])
def test_a_buffer_of_any_dtype_is_saved_and_loaded(team: ProcessGroup, dtype: torch.dtype, tmp_path: Path) -> None:
    """Rotary embeddings hold complex numbers, for example; a lazy conjugate is one, too."""
    model = nn.Linear(3, 2)
    turns = torch.polar(torch.ones(5), torch.arange(5.0))
    model.register_buffer("turns", turns.to(dtype).conj() if dtype.is_complex else turns.real.to(dtype))
    replica = replica_of(team, model, sgd(model))
    saved = model.get_buffer("turns").clone()
    replica.save(tmp_path / "state", {"turns": saved})
    model.get_buffer("turns").zero_()
    extra = replica.load(tmp_path / "state")
    for loaded in (model.get_buffer("turns"), extra["turns"]):
        assert (loaded.dtype, loaded.tolist()) == (dtype, saved.tolist())


def test_weights_keep_their_memory_format(team: ProcessGroup) -> None:
    model: Any = nn.Conv2d(3, 4, 3)
    model.to(memory_format=torch.channels_last)
    before = model.weight.detach().clone()
    replica_of(team, model, sgd(model), "local-sgd")
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("strategy", ["local-sgd", "shm-easgd"])
def test_tools_that_look_for_tied_weights_save_every_tensor(team: ProcessGroup, strategy: str, tmp_path: Path) -> None:
    """They take tensors of one storage for tied ones, and the weights of all parameters are one buffer."""
    model: Any = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model.to(memory_format=torch.channels_last)
    model[2].weight = model[1].weight
    replica = replica_of(team, model, sgd(model), strategy)
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    save_model(model, str(tmp_path / "model.safetensors"))
    replica.close()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    load_model(model, tmp_path / "model.safetensors")
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    assert len({value.untyped_storage().data_ptr() for value in model.state_dict().values()}) == len(saved) - 1


def test_a_model_belongs_to_one_replica(team: ProcessGroup) -> None:
    model = nn.Linear(3, 2)
    replica_of(team, model, sgd(model))
    with pytest.raises(InputError, match="'weight' already belongs to a replica"):
        replica_of(team, model, sgd(model))


def test_a_model_that_was_saved_whole_belongs_to_no_replica_when_it_is_loaded(team: ProcessGroup) -> None:
    model = nn.Linear(3, 2)
    replica_of(team, model, sgd(model))
    torch.save(model, file := io.BytesIO())
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    replica_of(team, loaded, sgd(loaded))


def test_step_takes_a_function(team: ProcessGroup) -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(InputError, match="got a int; give nothing, or a function"):
        replica_of(team, model, sgd(model)).step(3)  # type: ignore[arg-type]


class Around(torch.optim.Optimizer):
    """As Lookahead of timm, which leaves out `super().__init__()`: torch calls hooks of the one inside alone."""

    def __init__(self, inside: torch.optim.Optimizer) -> None:
        self.inside, self.defaults = inside, inside.defaults
        self.param_groups, self.state = inside.param_groups, inside.state

    def step(self, closure: Any = None) -> Any:
        return self.inside.step(closure)


@pytest.mark.parametrize("by_function", [False, True])
def test_an_optimizer_around_another_steps_without_a_warning(
    team: ProcessGroup, capsys: pytest.CaptureFixture[str], by_function: bool
) -> None:
    model = nn.Linear(3, 2)
    config, around = StrategyConfig("diloco"), Around(sgd(model))
    replica = Replica(model, around, team, config, 5.0, recipe=config.traits.recipe)
    for x in data(2 * LOOK_EVERY_STEPS):
        replica.backward(model(x).square().mean())
        replica.step(around.step if by_function else None)
    assert "stepped no optimizer" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ("local-sgd", r"backward\(\) inside step\(\): its function only updates weights; call backward\(\) before"),
        ("sync", r"in place of loss\.backward\(\), and before step\(\)"),
    ],
)
def test_a_backward_pass_in_the_function_of_step_is_refused(team: ProcessGroup, strategy: str, sentence: str) -> None:
    """As with torch's closures: the exchange of its gradients would come too late."""
    model = nn.Linear(3, 2)
    replica = replica_of(team, model, sgd(model), strategy)
    with pytest.raises(SamovarError, match=sentence):
        replica.step(lambda: replica.backward(model(torch.ones(1, 3)).sum()))


def test_parameters_that_share_memory_are_refused_where_weights_move(team: ProcessGroup) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight.data = model[0].weight.data
    with pytest.raises(InputError, match=r"'0\.weight' and '1\.weight' share memory"):
        replica_of(team, model, sgd(model), "local-sgd")
    alone = nn.Linear(3, 2)
    alone.register_buffer("seen", alone.weight.data)
    with pytest.raises(InputError, match=r"'seen' and 'weight' share memory"):
        replica_of(team, alone, sgd(alone), "local-sgd")


@pytest.mark.parametrize("strategy", ADDING_STEPS)
def test_a_center_that_adds_up_steps_wants_an_optimizer_without_momentum(team: ProcessGroup, strategy: str) -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(InputError, match=f"{strategy}: the optimizer has momentum 0.9.*make it with momentum=0"):
        replica_of(team, model, sgd(model), strategy)
    adam = replica_of(team, model, torch.optim.Adam(model.parameters()), strategy)
    assert "Adam averages gradients over steps" in adam.notices[0]


@pytest.mark.parametrize("strategy", ADDING_STEPS)
def test_a_scheduler_that_brings_momentum_there_later_is_refused_at_the_step(team: ProcessGroup, strategy: str) -> None:
    model = nn.Linear(3, 2)
    replica = replica_of(team, model, optimizer := sgd(model, 0.0), strategy)
    replica.backward(model(torch.ones(1, 3)).sum())
    replica.step()
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=9)
    replica.backward(model(torch.ones(1, 3)).sum())
    with pytest.raises(InputError, match=f"{strategy}: the optimizer has momentum 0.95.*cycle_momentum=False"):
        replica.step()
    replica.close()


def test_momentum_stays_with_the_worker_in_measgd_and_goes_to_the_center_in_msgd(team: ProcessGroup) -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(InputError, match="async-measgd: the solver or optimizer has no momentum; give it"):
        replica_of(team, model, sgd(model, 0.0), "async-measgd")
    with_momentum = replica_of(team, model, sgd(model), "async-measgd")
    assert with_momentum.config.moving_rate == 0.5
    other = nn.Linear(3, 2)
    assert replica_of(team, other, sgd(other, 0.0), "async-msgd").config.center_momentum == 0.9


def test_a_state_of_another_strategy_leaves_the_momentum_that_this_one_needs(team: ProcessGroup) -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    state = replica_of(team, model, sgd(model), "sync").state_dict()
    optimizer = sgd(other, 0.0)
    replica_of(team, other, optimizer, "async-sgd").load_state_dict(state)
    assert optimizer.param_groups[0]["momentum"] == 0.0
    assert torch.equal(other.weight, model.weight)


def test_a_state_of_a_strategy_without_momentum_takes_none_from_another(team: ProcessGroup) -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    state = replica_of(team, model, sgd(model, 0.0), "async-sgd").state_dict()
    optimizer = sgd(other)
    replica_of(team, other, optimizer).load_state_dict(state)
    assert optimizer.param_groups[0]["momentum"] == 0.9


def test_an_optimizer_may_keep_state_that_is_of_no_parameter(team: ProcessGroup) -> None:
    model = nn.Linear(3, 2)
    optimizer = sgd(model)
    optimizer.state["count"] = 3  # type: ignore[index]  # torch saves and loads it as it is
    state = replica_of(team, model, optimizer).state_dict()
    assert state["optimizer"]["state"]["count"] == 3


def test_importing_samovar_does_not_import_torch() -> None:
    program = "import samovar, sys; assert 'torch' not in sys.modules; samovar.replicate; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("strategy", ["sync", "local-sgd", "diloco", "sync-easgd"])
def test_weights_that_are_not_finite_are_told_and_never_shown(team: ProcessGroup, strategy: str) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e30)
    replica = replica_of(team, model, optimizer, strategy)
    with pytest.raises(NotFinite, match=r"rank 0: the weights of 0.weight are not finite after step 8 \(loss .*1e\+30"):
        trained(replica, model, 8)
    for use in (replica.finish, replica.state_dict, lambda: replica.evaluating().__enter__()):
        with pytest.raises(NotFinite, match="lower the learning rate, or look at this rank's data"):
            use()


@pytest.mark.parametrize("kind", [sgd, torch.optim.AdamW, torch.optim.Adagrad])
def test_after_one_bad_batch_a_worker_continues_from_the_center_without_what_it_kept_of_it(
    team: ProcessGroup, kind: Any
) -> None:
    """Momentum that is NaN would spoil each further step, until the worker is lost."""
    model = nn.Linear(3, 1)
    optimizer = kind(model) if kind is sgd else kind(model.parameters())
    with Replica(model, optimizer, team, StrategyConfig("async-easgd", sync_period_steps=1), 5.0) as replica:
        for value in (1.0, float("nan"), 1.0, 1.0, 1.0):
            optimizer.zero_grad()
            replica.backward(model(torch.full((1, 3), value)).sum())
            replica.step()
        assert torch.isfinite(model.weight).all()


def trained(replica: Replica, model: nn.Module, steps: int) -> None:
    for _ in range(steps):
        replica.backward(model(torch.ones(1, 3)).square().sum())
        replica.step()


def test_inputs_of_a_backward_pass_may_be_one_tensor(team: ProcessGroup) -> None:
    """As those of `Tensor.backward`; its rows would be other tensors, and nothing would learn."""
    model = nn.Linear(3, 2)
    replica_of(team, model, sgd(model)).backward(model(torch.ones(1, 3)).sum(), inputs=model.weight)
    assert (model.weight.grad is None, model.bias.grad is None) == (False, True)


class Clones(TorchDispatchMode):
    """The sizes of the tensors that are cloned."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.clone.default:
            self.sizes.add(args[0].numel())
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("strategy", ["sync", "sync-easgd"])
def test_the_end_copies_no_weights_that_are_frozen(team: ProcessGroup, strategy: str) -> None:
    """They may fill more than half of the memory, as those under LoRA do."""
    base, head = nn.Linear(3, 50).requires_grad_(False), nn.Linear(50, 2)
    model = nn.Sequential(base, head)
    replica = replica_of(team, model, torch.optim.SGD(head.parameters(), lr=0.1), strategy)
    trained(replica, model, 1)
    with Clones() as clones:
        replica.finish()
    assert head.weight.numel() in clones.sizes
    assert base.weight.numel() not in clones.sizes


def test_a_cache_that_was_made_in_inference_mode_does_not_stop_the_end(team: ProcessGroup) -> None:
    """Nobody may write into such a tensor later."""
    model = nn.Linear(3, 2)
    model.register_buffer("cache", torch.zeros(1), persistent=False)
    replica = replica_of(team, model, sgd(model), "local-sgd")
    trained(replica, model, 1)
    with torch.inference_mode():
        model.cache = torch.ones(5)
    replica.finish()
    assert model.cache.tolist() == [1.0] * 5
