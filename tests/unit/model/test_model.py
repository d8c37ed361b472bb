"""The model's gradients against plain autograd, and when its hooks run."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from samovar.core.buffer import FlatBuffer
from samovar.core.errors import InputError
from samovar.core.layout import Bucket
from samovar.model import direct
from samovar.model.half import NetOutput
from samovar.model.model import Model, layout_of

Batch = dict[str, torch.Tensor]


class DirectLinear(nn.Linear):
    """Writes its gradient into the flat buffer itself."""

    def forward(self, x_MK: torch.Tensor) -> torch.Tensor:
        return direct.linear(x_MK, self.weight, self.bias)


class Net(nn.Module):
    """Convolutions, a direct and a plain inner product, a layer used twice, one used at times, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3)
        self.conv2 = nn.Conv2d(6, 4, (3, 2))
        self.twice = nn.Linear(5, 5, bias=False)
        self.fc1 = DirectLinear(4 * 4 * 5, 7)
        self.at_times = nn.Linear(7, 7)
        self.fc2 = nn.Linear(7, 3)
        self.never = nn.Linear(2, 2)
        self.frozen = DirectLinear(3, 3)
        self.frozen.requires_grad_(False)

    def forward(self, batch: Batch) -> NetOutput:
        x = torch.relu(self.conv1(batch["data"]))
        x = torch.tanh(self.twice(self.twice(self.conv2(x))))
        x = torch.tanh(self.fc1(x.flatten(1)))
        if batch["use_all"]:
            x = x + self.at_times(x)
        loss = F.cross_entropy(self.frozen(self.fc2(x)), batch["label"])
        return NetOutput(loss, {"loss": loss.detach()})


def make_batch(seed: int, use_all: bool = True) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    data = torch.randn(5, 3, 8, 8, generator=generator)
    label = torch.randint(0, 3, (5,), generator=generator)
    return {"data": data, "label": label, "use_all": torch.tensor(use_all)}


def ignore(_bucket: Bucket) -> None:
    """No hook."""


@dataclass
class Rig:
    """A model beside its twin that knows nothing of flat buffers; `finals` are the gradients seen by the hook."""

    bucket_size_bytes: int | None = 1
    finals: list[tuple[int, np.ndarray]] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(3)
        net = Net()
        self.twin = copy.deepcopy(net)
        parameters = dict(net.named_parameters())
        self.layout = layout_of(parameters)
        self.buckets = self.layout.buckets(self.bucket_size_bytes)
        self.weights, self.gradients = FlatBuffer.zeros(self.layout), FlatBuffer.zeros(self.layout)
        self.gradients.array_N[:] = np.nan
        self.model = Model(net, parameters, self.weights, self.gradients, self.buckets)

    def note(self, bucket: Bucket) -> None:
        self.finals.append((bucket.index, self.gradients.array_N[bucket.start : bucket.stop].copy()))

    def step(
        self, parts: list[Batch], loss_scale: float = 1.0, before_forward: Callable[[Bucket], None] = ignore
    ) -> list[float]:
        losses = [
            self.model.forward_backward(
                part,
                loss_scale=loss_scale,
                first_part=index == 0,
                last_part=index == len(parts) - 1,
                before_forward=before_forward,
                gradient_final=self.note,
            )
            for index, part in enumerate(parts)
        ]
        return [float(loss) for loss in losses]

    def expected(self, parts: list[Batch], loss_scale: float = 1.0) -> dict[str, np.ndarray]:
        """The twin's gradients by autograd; zero if it gives none."""
        self.twin.zero_grad()
        for part in parts:
            loss = self.twin(part).loss
            assert loss is not None
            (loss_scale * loss).backward()
        return {
            name: np.zeros(p.shape, np.float32) if p.grad is None else p.grad.numpy()
            for name, p in self.twin.named_parameters()
        }

    def check(self, parts: list[Batch], loss_scale: float = 1.0) -> None:
        for name, gradient in self.expected(parts, loss_scale).items():
            if name.startswith("frozen"):
                continue  # it has no gradient
            np.testing.assert_allclose(self.gradients.logical(name), gradient, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("bucket_size_bytes", [1, 600, None])
@pytest.mark.parametrize(
    "uses",
    [(True,), (False,), (True, True, True), (False, True), (True, False), (False, False)],
    ids=str,
)
def test_gradients_equal_autograds(bucket_size_bytes: int | None, uses: tuple[bool, ...]) -> None:
    rig = Rig(bucket_size_bytes)
    for step in range(2):  # the second step starts over what the first one left
        parts = [make_batch(10 * step + k, use) for k, use in enumerate(uses)]
        losses = rig.step(parts, loss_scale=0.4)
        rig.check(parts, loss_scale=0.4)
        assert losses == pytest.approx([rig.twin(part).loss.item() for part in parts], rel=1e-5)
    assert all(parameter.grad is None for parameter in rig.model.net.parameters()), "its memory is given back"


@pytest.mark.parametrize("bucket_size_bytes", [1, 600, None])
@pytest.mark.parametrize("uses", [(True,), (True, False, False), (False, True, True)], ids=str)
def test_each_bucket_is_final_once_when_its_gradient_is_complete(
    bucket_size_bytes: int | None, uses: tuple[bool, ...]
) -> None:
    rig = Rig(bucket_size_bytes)
    rig.step([make_batch(k, use) for k, use in enumerate(uses)])
    assert sorted(index for index, _ in rig.finals) == list(range(len(rig.buckets)))
    for index, seen in rig.finals:
        for entry in rig.buckets[index].entries:
            run = slice(entry.offset - rig.buckets[index].start, entry.stop - rig.buckets[index].start)
            assert np.array_equal(seen[run], rig.gradients.array_N[entry.offset : entry.stop]), entry.spec.name


def test_the_last_layers_buckets_are_final_first_and_unreached_ones_at_the_end() -> None:
    rig = Rig()
    rig.step([make_batch(0, use_all=False)])
    names = [rig.buckets[index].entries[0].spec.name.rpartition(".")[0] for index, _ in rig.finals]
    reached = list(dict.fromkeys(names[:9]))
    assert reached == ["fc2", "fc1", "twice", "conv2", "conv1"]
    assert set(names[9:]) == {"never", "at_times"}


def test_what_is_not_learned_belongs_to_no_bucket() -> None:
    rig = Rig(None)
    (bucket,) = rig.buckets
    frozen = {"frozen.weight", "frozen.bias"}
    assert {entry.spec.name for entry in rig.layout.entries} - {entry.spec.name for entry in bucket.entries} == frozen
    assert all(entry.offset >= bucket.stop for entry in rig.layout.entries if entry.spec.name in frozen)
    rig.step([make_batch(0)])
    assert len(rig.finals) == 1
    assert np.isnan(rig.gradients.logical("frozen.weight")).all()


def test_unreached_gradients_are_zero_and_final() -> None:
    rig = Rig()
    rig.step([make_batch(0, use_all=False), make_batch(1, use_all=False)])
    for name in ("never.weight", "never.bias", "at_times.weight"):
        assert not rig.gradients.logical(name).any(), name
    assert len(rig.finals) == len(rig.buckets)


@pytest.mark.parametrize("bucket_size_bytes", [1, 600])
def test_before_forward_comes_once_before_the_buckets_first_layer(bucket_size_bytes: int) -> None:
    """The weights arrive only in the hook: a bucket that came late would give not-a-number."""
    rig = Rig(bucket_size_bytes)
    fresh = rig.weights.array_N.copy()
    arrived = []

    def arrive(bucket: Bucket) -> None:
        arrived.append(bucket.index)
        rig.weights.array_N[bucket.start : bucket.stop] = fresh[bucket.start : bucket.stop]

    for step in range(2):
        rig.weights.array_N[: rig.buckets[-1].stop] = np.nan
        arrived.clear()
        parts = [make_batch(2 * step + k) for k in range(2)]
        rig.step(parts, before_forward=arrive)
        rig.check(parts)
        needed = [b.index for b in rig.buckets if any(not e.spec.name.startswith("never") for e in b.entries)]
        assert sorted(arrived) == needed


def test_a_pass_without_training_calls_no_hook() -> None:
    rig = Rig()
    rig.step([make_batch(0)])
    rig.finals.clear()
    gradients = rig.gradients.array_N.copy()
    with torch.no_grad():
        rig.model.net(make_batch(1))
    assert rig.finals == []
    assert np.array_equal(rig.gradients.array_N, gradients, equal_nan=True)


def test_parameters_are_views_of_the_flat_weights() -> None:
    rig = Rig()
    for name, parameter in rig.model.net.named_parameters():
        assert torch.equal(parameter, dict(rig.twin.named_parameters())[name]), "the module's values moved in"
        rig.weights.view(name).fill_(0.125)
        assert (parameter == 0.125).all()
    rig.weights.array_N[:] = 0
    assert rig.model.net(make_batch(0)).loss.item() == pytest.approx(np.log(3))
    with torch.no_grad():
        rig.model.net.get_parameter("fc2.weight")[1, 2] = 8.0
    assert rig.weights.logical("fc2.weight")[1, 2] == 8.0
    assert rig.model.net.get_parameter("conv1.weight").is_contiguous(memory_format=torch.channels_last)


def test_state_goes_around_and_another_nets_is_refused() -> None:
    rig, other = Rig(), Rig(None)
    rig.weights.array_N[:] = np.arange(len(rig.weights.array_N))
    other.model.load_state_dict(rig.model.state_dict())
    assert other.weights.sha256() == rig.weights.sha256()
    with pytest.raises(InputError, match="weights: missing"):
        other.model.load_state_dict({})


def test_the_layout_is_in_backward_order_with_what_is_not_learned_last() -> None:
    parameters = dict(Net().named_parameters())
    entries = layout_of(parameters).entries
    backwards = list(parameters)[::-1]
    frozen = [name for name in backwards if name.startswith("frozen")]
    assert [entry.spec.name for entry in entries] == [name for name in backwards if name not in frozen] + frozen
    assert {e.spec.name for e in entries if e.spec.channels_last} == {"conv1.weight", "conv2.weight"}
