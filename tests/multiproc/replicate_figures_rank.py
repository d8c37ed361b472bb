"""Rank program: loops whose figures go to a file, a sink and a timeline."""

import gzip
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from samovar.api.figures_wanted import figures_wanted
from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.report.metrics import read_metrics
from samovar.report.sinks import Sink
from samovar.strategies.config import StrategyConfig
from tests.multiproc.replicate_nets import TIMEOUT_S, batches, perceptron, replicated, sgd
from tests.multiproc.replicate_ranks import serve_rank

NUM_STEPS, PERIOD = 8, 4
Loop = Callable[[Replica, torch.nn.Module], list[float]]


class Broken(Sink):
    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        raise OSError(f"no network at step {step} of {kind}: {sorted(values)}")


def seen(process_group: ProcessGroup, loop: Loop, name: str = "sync", sinks: Any = (), **settings: Any) -> Any:
    """The losses of this rank in `loop`, its figures, the lines of metrics.jsonl and the events of the trace."""
    trace = settings.pop("trace", None)
    model = perceptron()
    with tempfile.TemporaryDirectory() as own:
        folder = Path(replicated(process_group, perceptron(), name=name, **settings).broadcast(own))
        config = StrategyConfig(name=name, **settings)
        wanted = figures_wanted([folder, *sinks], trace, has_center=config.needs_center)
        with Replica(model, sgd(model), process_group, config, TIMEOUT_S, wanted=wanted) as replica:
            losses = loop(replica, model)
            replica.finish()
            figures = replica.figures()
        replica.barrier()
        lines = read_metrics(folder / "metrics.jsonl") if replica.is_first else []
        content = {} if trace is None else json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))
        left = sorted(path.name for path in folder.iterdir())
        replica.barrier()
    told = {"steps": figures.steps, "samples": figures.samples, "verdict": figures.verdict, "loss": figures.loss}
    return {"losses": losses, "lines": lines, "figures": told, "events": content.get("traceEvents", []), "left": left}


def own_loop(replica: Replica, model: torch.nn.Module) -> list[float]:
    losses = []
    for x, y in batches(replica.rank, NUM_STEPS):
        loss = F.cross_entropy(model(x), y)
        replica.backward(loss)
        replica.step()
        losses.append(float(loss))
    return losses


def logging_loop(replica: Replica, model: torch.nn.Module) -> list[float]:
    """All ranks meet after each step, and evaluate before the last exchange."""
    losses: list[float] = []
    for x, y in batches(replica.rank, 3 * PERIOD):
        if len(losses) == 2 * PERIOD:
            with replica.evaluating():
                model(x)
        loss = F.cross_entropy(model(x), y)
        replica.backward(loss)
        replica.step()
        losses.append(float(replica.mean(loss)))
    return losses


def sharded_loop(replica: Replica, model: torch.nn.Module) -> list[float]:
    """The last rank has no data in the last step."""
    data = TensorDataset(torch.randn(NUM_STEPS * replica.world_size - 1, 6))
    losses = []
    for (x,) in replica.shard(DataLoader(data, batch_size=1)):
        loss = model(x).square().mean()
        replica.backward(loss)
        replica.step()
        losses.append(float(loss))
    return losses


def in_parts_loop(replica: Replica, model: torch.nn.Module) -> list[float]:
    """Two backward passes a step, and an evaluation between steps."""
    losses = []
    for x, y in batches(replica.rank, NUM_STEPS):
        parts = [F.cross_entropy(model(x[part]), y[part]) / 2 for part in (slice(2), slice(2, 4))]
        replica.backward(parts[0], more=True)
        replica.backward(parts[1])
        replica.step()
        with replica.evaluating():
            model(x)
        losses.append(float(sum(parts)))
    return losses


def resumed_loop(replica: Replica, model: torch.nn.Module) -> list[float]:
    losses = own_loop(replica, model)
    state = replica.state_dict()
    own_loop(replica, model)
    replica.load_state_dict(state)
    return losses + own_loop(replica, model)


def in_step(process_group: ProcessGroup) -> Any:
    return seen(process_group, own_loop, sinks=(Broken(),))


def uneven(process_group: ProcessGroup) -> Any:
    return seen(process_group, sharded_loop)


def in_parts(process_group: ProcessGroup) -> Any:
    return seen(process_group, in_parts_loop)


def seldom(process_group: ProcessGroup) -> Any:
    return seen(process_group, own_loop, "local-sgd", sync_period_steps=PERIOD)


def seldom_logged(process_group: ProcessGroup) -> Any:
    return seen(process_group, logging_loop, "local-sgd", sync_period_steps=PERIOD)


def resumed(process_group: ProcessGroup) -> Any:
    return seen(process_group, resumed_loop)


def at_own_speed(process_group: ProcessGroup) -> Any:
    return seen(process_group, own_loop, "shm-easgd")


class Nested(torch.nn.Module):
    """Attention, whose inner matrices are in no module that is called, and a parameter of the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.place = torch.nn.Parameter(torch.zeros(6))
        self.attention = torch.nn.MultiheadAttention(6, 2, batch_first=True)
        self.mlp = perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x + self.place)[:, None]
        scores: torch.Tensor = self.mlp(self.attention(tokens, tokens, tokens)[0][:, 0])
        return scores


def profiled(process_group: ProcessGroup) -> Any:
    """A profile of three steps, between which the model is evaluated, and one that the end of training cuts short."""
    torch.manual_seed(1)
    model = Nested()
    with tempfile.TemporaryDirectory() as own, replicated(process_group, model) as replica:
        paths = [Path(own) / "three.json", Path(own) / "cut.json"]
        replica.profile(paths[0], steps=3, batch_size=4)
        in_parts_loop(replica, model)
        replica.profile(paths[1], batch_size=4)
        with replica.evaluating():
            model(torch.zeros(2, 6))
        own_loop(replica, model)
        replica.finish()
        return [json.loads(path.read_text()) if path.exists() else None for path in paths]


def traced(process_group: ProcessGroup) -> Any:
    return seen(process_group, own_loop, trace="steps=3-4")


SCENARIOS = {
    one.__name__: one
    for one in (in_step, uneven, in_parts, seldom, seldom_logged, resumed, at_own_speed, traced, profiled)
}

if __name__ == "__main__":
    serve_rank(SCENARIOS)
