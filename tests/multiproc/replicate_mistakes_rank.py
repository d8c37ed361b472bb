"""Rank program: mistakes in a training loop. Each ends with an error on every rank; the last of them work."""

import copy
import io
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, suppress
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.core.errors import SamovarError
from samovar.core.layout import LOOK_EVERY_STEPS
from tests.multiproc.replicate_nets import batches, distance, perceptron, replicated, sgd, train_alone, values
from tests.multiproc.replicate_ranks import serve_rank

STEPS = 4


class Loop:
    """A user's loop, up to the mistake."""

    def __init__(self, process_group: ProcessGroup, strategy: str, **settings: Any) -> None:
        self.model = perceptron()
        self.optimizer = sgd(self.model)
        self.replica: Replica = replicated(process_group, self.model, self.optimizer, name=strategy, **settings)
        self.batches = batches(self.replica.rank, 20)

    def loss(self) -> torch.Tensor:
        x, y = next(self.batches)
        self.optimizer.zero_grad()
        return F.cross_entropy(self.model(x), y)

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.replica.backward(self.loss())
            self.replica.step()


def plain_backward(loop: Loop) -> None:
    loop.train(1)
    loop.loss().backward()
    loop.replica.step()


def added_later(loop: Loop) -> None:
    """A loop that unfreezes layers bit by bit, and computes its gradients itself."""
    loop.train(1)
    loop.model.register_parameter("scale", nn.Parameter(torch.ones(())))
    loop.optimizer.add_param_group({"params": loop.model.get_parameter("scale")})
    loop.loss().backward()
    loop.replica.step()


def failed_backward(loop: Loop) -> None:
    """A script that goes on after a failure, as some do when memory is short."""

    def fail(_gradient: torch.Tensor) -> None:
        raise MemoryError

    with suppress(MemoryError):
        loss = loop.loss()
        hook = next(loop.model.parameters()).register_hook(fail)
        try:
            loop.replica.backward(loss)
        finally:
            hook.remove()
    loop.train(1)


def one_more_pass(loop: Loop) -> None:
    """A loop with a loss that only some samples have. From here on, exchanges would be of different steps."""
    loop.train(2)
    if loop.replica.rank == 1:
        loop.replica.backward(loop.loss())
    loop.train(2)


def more_on_every_part(loop: Loop) -> None:
    loop.replica.backward(loop.loss(), more=True)
    loop.replica.step()


def late_backward(loop: Loop) -> None:
    loop.replica.backward(loop.loss())
    x, y = next(loop.batches)
    F.cross_entropy(loop.model(x), y).backward()
    loop.replica.step()


def backward_in_step(loop: Loop) -> None:
    """A second gradient at other weights, as SAM takes, once the first step is over."""
    loop.train(1)

    def second() -> None:
        loop.loss().backward()
        loop.optimizer.step()

    loop.replica.backward(loop.loss())
    loop.replica.step(second)


def plain_step(loop: Loop) -> None:
    loop.replica.backward(loop.loss())
    loop.optimizer.step()


def step_of_step(loop: Loop) -> None:
    loop.replica.backward(loop.loss())
    loop.replica.step(loop.optimizer.step())


def finish_without_step(loop: Loop) -> None:
    loop.replica.backward(loop.loss())
    loop.replica.finish()


def evaluating_without_step(loop: Loop) -> None:
    loop.replica.backward(loop.loss())
    with loop.replica.evaluating():
        pass


def loads_on_one_rank(loop: Loop) -> None:
    loop.train(2)
    state = loop.replica.state_dict()
    if loop.replica.is_first:
        loop.replica.load_state_dict(state)
    loop.train(2)


def loads_alone_at_a_center(loop: Loop, one: int) -> None:
    loop.train(2)
    if loop.replica.rank == one:
        loop.replica.load_state_dict(loop.replica.state_dict())
    loop.train(2)
    loop.replica.finish()


def loads_mixed_steps(loop: Loop) -> None:
    loop.train(1)
    states = [loop.replica.state_dict()]
    loop.train(1)
    states.append(loop.replica.state_dict())
    loop.replica.load_state_dict(states[min(loop.replica.rank, 1)])


def loads_mixed_runs(loop: Loop) -> None:
    loop.train(1)
    state = loop.replica.state_dict()
    if loop.replica.is_first:
        state["run"] += 1.0
    loop.replica.load_state_dict(state)


def shared_later(loop: Loop) -> None:
    loop.train(1)
    loop.model.share_memory()
    loop.train(1)


def doubled_later(loop: Loop) -> None:
    loop.train(1)
    loop.model.double()
    x, y = next(loop.batches)
    loop.replica.backward(F.cross_entropy(loop.model(x.double()), y))


def differs_at_save(loop: Loop) -> None:
    loop.train(1)
    _disturb(loop)
    loop.replica.state_dict()
    loop.train(1)


def differs_when_asked(loop: Loop) -> None:
    loop.train(1)
    _disturb(loop)
    loop.train(2)


def differs_at_first(loop: Loop) -> None:
    if loop.replica.rank == 1:
        loop.optimizer.param_groups[0]["lr"] *= 2.0
    loop.train(2)


def differs_at_finish(loop: Loop) -> None:
    loop.train(1)
    _disturb(loop)
    loop.replica.finish()


def differs_at_evaluating(loop: Loop) -> None:
    loop.train(1)
    if loop.replica.rank == 1:
        loop.optimizer.param_groups[0]["lr"] *= 2.0
    loop.train(1)
    with loop.replica.evaluating():
        pass


def wrapped_later(loop: Loop) -> None:
    with _default_group():
        DistributedDataParallel(loop.model)


def _disturb(loop: Loop) -> None:
    if loop.replica.rank == 1:
        with torch.no_grad():
            next(loop.model.parameters()).add_(1.0)


class _default_group:
    """A group of this process alone, such as a framework makes."""

    def __enter__(self) -> None:
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    def __exit__(self, *_error: object) -> None:
        torch.distributed.destroy_process_group()


def wrapped_before(process_group: ProcessGroup) -> Any:
    model = perceptron()
    with _default_group():
        wrapped = DistributedDataParallel(model)
        result = _error_of(lambda: replicated(process_group, model, sgd(model)))
    del wrapped
    return result


def sync_batch_norm(process_group: ProcessGroup) -> Any:
    model = nn.Sequential(nn.Linear(6, 4), nn.SyncBatchNorm(4))
    return _error_of(lambda: replicated(process_group, model, sgd(model)))


def parameter_in_two_optimizers(process_group: ProcessGroup) -> Any:
    model = perceptron()
    return _error_of(lambda: replicated(process_group, model, [sgd(model), sgd(model)]))


def several_optimizers(process_group: ProcessGroup, strategy: str = "sync") -> Any:
    """Weights by one, biases by another: as one optimizer of both."""
    model = perceptron()
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    several = [sgd(weights), sgd(biases)]
    replica = replicated(process_group, model, several, name=strategy)
    for x, y in batches(replica.rank, STEPS):
        for optimizer in several:
            optimizer.zero_grad()
        replica.backward(F.cross_entropy(model(x), y))
        replica.step()
    state = replica.state_dict()
    replica.load_state_dict(_read_again(state))
    reference = train_alone(perceptron(), replica.world_size, STEPS)
    return {"distance": distance(model, reference), "num": len(state["optimizer"]["optimizers"])}


def several_replicas(process_group: ProcessGroup) -> Any:
    """The same by two replicas, which take their gradients from one backward pass."""
    model = perceptron()
    optimizers = [sgd([p for p in model.parameters() if (p.dim() > 1) is wide]) for wide in (True, False)]
    first, second = (replicated(process_group, model, optimizer) for optimizer in optimizers)
    for x, y in batches(first.rank, STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        first.backward(F.cross_entropy(model(x), y), also=[second])
        first.step()
        second.step()
    return {"distance": distance(model, train_alone(perceptron(), first.world_size, STEPS))}


def warned(process_group: ProcessGroup, strategy: str, *, same_data: bool) -> Any:
    """What a rank says in a few steps and an evaluation."""
    loop = Loop(process_group, strategy)
    if same_data:
        loop.batches = batches(0, 20)
    with redirect_stderr(io.StringIO()) as said:
        loop.train(STEPS + 1)
        with loop.replica.evaluating():
            pass
    loop.replica.close()
    return {"text": said.getvalue()}


def warned_of_a_closure(process_group: ProcessGroup, *, updates: bool) -> Any:
    """A function for `step` that computes gradients, as torch's optimizers take it; or one that updates."""
    loop = Loop(process_group, "local-sgd")

    def closure() -> torch.Tensor:
        loss = loop.loss()
        loss.backward()
        return loss

    with redirect_stderr(io.StringIO()) as said:
        for _ in range(2 * LOOK_EVERY_STEPS):
            if updates:
                closure()
            loop.replica.step(loop.optimizer.step if updates else closure)
    loop.replica.close()
    return {"text": said.getvalue()}


def copies_are_free(process_group: ProcessGroup) -> Any:
    """A copy of the model belongs to nobody."""
    model = perceptron()
    replicated(process_group, model, sgd(model))
    with _default_group():
        DistributedDataParallel(copy.deepcopy(model))
    return {"values": values(model)}


def _read_again(state: Mapping[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def _error_of(work: Callable[[], Any]) -> dict[str, Any]:
    try:
        work()
    except SamovarError as error:
        return {"kind": type(error).__name__, "text": str(error)}
    return {"kind": None, "text": "nothing was said"}


def _in_loop(mistake: Callable[[Loop], None], strategy: str, **settings: Any) -> Callable[[ProcessGroup], Any]:
    def scenario(process_group: ProcessGroup) -> Any:
        loop = Loop(process_group, strategy, **settings)
        result = _error_of(lambda: mistake(loop))
        with suppress(SamovarError):
            loop.replica.close()
        return result

    return scenario


STEPPED = {"plain_step": plain_step, "step_of_step": step_of_step}
SCENARIOS: dict[str, Callable[[ProcessGroup], Any]] = {
    **{
        mistake.__name__: _in_loop(mistake, "sync")
        for mistake in (
            plain_backward,
            failed_backward,
            one_more_pass,
            more_on_every_part,
            late_backward,
            backward_in_step,
            finish_without_step,
            loads_on_one_rank,
            loads_mixed_steps,
            loads_mixed_runs,
            shared_later,
            doubled_later,
            differs_at_save,
            differs_at_first,
            differs_at_finish,
            differs_at_evaluating,
            wrapped_later,
        )
    },
    "differs_when_asked": _in_loop(differs_when_asked, "sync", compare_weights_steps=2),
    **{
        f"{name}/{strategy}": _in_loop(mistake, strategy, **settings)
        for name, mistake in {**STEPPED, "evaluating_without_step": evaluating_without_step}.items()
        for strategy, settings in {"sync": {}, "local-sgd": {"sync_period_steps": 2}, "sync-easgd": {}}.items()
    },
    **{f"added_later/{strategy}": _in_loop(added_later, strategy) for strategy in ("local-sgd", "sync-easgd")},
    "loads_on_one_rank/local-sgd": _in_loop(loads_on_one_rank, "local-sgd", sync_period_steps=2),
    "plain_step/shm-easgd": _in_loop(plain_step, "shm-easgd"),
    "loads_mixed_runs/shm-easgd": _in_loop(loads_mixed_runs, "shm-easgd"),
    **{
        f"rank {one} loads alone/{strategy}": _in_loop(partial(loads_alone_at_a_center, one=one), strategy)
        for one, strategy in ((0, "shm-easgd"), (1, "async-easgd"))
    },
    "warned/same data": partial(warned, strategy="sync", same_data=True),
    "warned/early": partial(warned, strategy="sync-easgd", same_data=False),
    "warned/sync": partial(warned, strategy="sync", same_data=False),
    "warned/closure": partial(warned_of_a_closure, updates=False),
    "warned/update": partial(warned_of_a_closure, updates=True),
    "wrapped_before": wrapped_before,
    "sync_batch_norm": sync_batch_norm,
    "parameter_in_two_optimizers": parameter_in_two_optimizers,
    "several_optimizers": several_optimizers,
    "several_replicas": several_replicas,
    "copies_are_free": copies_are_free,
}

if __name__ == "__main__":
    serve_rank(SCENARIOS)
