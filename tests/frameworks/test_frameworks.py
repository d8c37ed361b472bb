"""The examples in other frameworks' loops: with `sync` the losses of the framework's own DistributedDataParallel.

Each line of an example that Samovar changed says what it was; with these put back it is the framework's own script.
"""

import importlib.util
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from samovar.launch.wishes import METRICS
from samovar.report.metrics import read_metrics

BIN = Path(sys.executable).parent
WAS = re.compile(r"^( *).*# was: (.*)$", re.MULTILINE)
MOST_LINES_CHANGED = 3
TIMEOUT_S = 280.0
LAUNCHED = ("transformers_trainer", "accelerate_loop")  # the others start their ranks themselves
FRAMEWORKS = {
    "transformers_trainer": "transformers",
    "accelerate_loop": "accelerate",
    "lightning_trainer": "lightning",
    "fabric_loop": "lightning",
}
OTHER_STRATEGY = {
    "transformers_trainer": ("eval_dataset=Parity(256))", 'eval_dataset=Parity(256), strategy="{strategy}")'),
    "accelerate_loop": ("gradient_accumulation_steps=2)", 'gradient_accumulation_steps=2, strategy="{strategy}")'),
    "lightning_trainer": ('SamovarStrategy("sync")', 'SamovarStrategy("{strategy}")'),
    "fabric_loop": ('FabricStrategy("sync")', 'FabricStrategy("{strategy}")'),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(params=FRAMEWORKS)
def name(request: pytest.FixtureRequest) -> str:
    framework = FRAMEWORKS[request.param]
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: pip install -e '.[frameworks]'")
    return str(request.param)


def losses_of(command: Sequence[object], folder: Path, most_attempts: int = 1) -> list[float]:
    """What rank 0 prints: its losses, and the final one."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRANSFORMERS_OFFLINE": "1", METRICS: str(folder / "figures")}
    for _ in range(most_attempts):
        completed = subprocess.run(
            list(map(str, command)),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if completed.returncode == 0:
            break
        remove_memory_of_mpi()
    assert completed.returncode == 0, completed.stderr[-3000:]
    lines = re.findall(r"^(?:\[0\] )?(?:losses|final) (.*)$", completed.stdout, re.MULTILINE)
    return [float(word) for line in lines for word in line.split()]


def remove_memory_of_mpi() -> None:
    """Lightning starts MPI where mpi4py is installed, and a rank that aborts leaves MPICH's memory."""
    for memory in Path("/dev/shm").glob("mpich_shm_*"):
        if not psutil.pid_exists(int(memory.name.split("_")[2])):
            memory.unlink()


def run(name: str, text: str, folder: Path, *, plain: bool = False) -> list[float]:
    script = folder / f"{name}.py"
    script.write_text(text)
    launcher: list[object] = [sys.executable]
    if name in LAUNCHED and plain:
        launcher = [BIN / "torchrun", "--standalone", "--nproc-per-node", 2]
    elif name in LAUNCHED:
        launcher = [BIN / "samovar", "run", "-n", 2]
    # A process group that the framework opens aborts its rank at the end once in a while, also without Samovar: the
    # interpreter ends while a thread of the group runs.
    return losses_of([*launcher, script], folder, most_attempts=3 if plain or name not in LAUNCHED else 1)


def test_the_losses_are_those_of_the_framework_itself(name: str, tmp_path: Path, repository_root: Path) -> None:
    text = (repository_root / "examples" / "frameworks" / f"{name}.py").read_text()
    assert 1 <= len(WAS.findall(text)) <= MOST_LINES_CHANGED
    theirs = run(name, WAS.sub(r"\1\2", text), tmp_path, plain=True)
    assert len(theirs) > 5
    assert run(name, text, tmp_path) == pytest.approx(theirs, rel=1e-5)


def test_another_strategy_trains_to_the_end(name: str, tmp_path: Path, repository_root: Path) -> None:
    text = (repository_root / "examples" / "frameworks" / f"{name}.py").read_text()
    old, new = OTHER_STRATEGY[name]
    assert old in text
    losses = run(name, text.replace(old, new.format(strategy="sync-easgd")), tmp_path)
    assert len(losses) > 5
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0]
    lines = [line for line in read_metrics(tmp_path / "figures/metrics.jsonl") if line["kind"] == "train"]
    assert all(line["samples"] > 0 and line["data_s"] > 0.0 for line in lines)
    assert [line["step"] for line in lines] == sorted({line["step"] for line in lines}) != []


def test_accelerate_refuses_a_second_model_also_in_a_prepare_of_its_own() -> None:
    pytest.importorskip("accelerate")
    program = (
        "from torch import nn, optim\n"
        "from samovar.integrations.accelerate import Accelerator\n"
        "accelerator = Accelerator(cpu=True)\n"
        "for model in (nn.Linear(2, 2), nn.Linear(2, 1)):\n"
        "    accelerator.prepare(model, optim.SGD(model.parameters(), 0.1))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert "got 2 models and 2 optimizers" in ended.stderr


PROGRAMS = {
    "transformers": """
import torch
from torch import nn
from transformers import TrainerCallback, TrainingArguments
from samovar.integrations.transformers import Trainer

data = [{"x": torch.randn(4), "labels": torch.tensor(k % 2)} for k in range(32)]

class Net(nn.Linear):
    def forward(self, x, labels=None):
        logits = super().forward(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

class Compare(TrainerCallback):
    def on_step_end(self, args, state, control, **_kept):
        assert trainer.predict(data).metrics["test_loss"] == trainer.evaluate(data)["eval_loss"]

    def on_train_end(self, args, state, control, model, **_kept):
        self.shown = model.weight.detach().clone()

settings = dict(use_cpu=True, max_steps=3, eval_strategy="steps", eval_steps=1, save_strategy="no", report_to="none")
trainer = Trainer(
    model_init=lambda: Net(4, 2),
    args=TrainingArguments("out", **settings),
    train_dataset=data,
    eval_dataset={"one": data, "two": data},
    callbacks=[compare := Compare()],
    strategy="sync-easgd",
)
for _ in range(2):
    trainer.train()
    assert torch.equal(compare.shown, trainer.model.weight)
""",
    "accelerate": """
from safetensors.torch import load_file
from torch import equal, nn, optim, ones
from samovar import InputError
from samovar.integrations.accelerate import Accelerator

accelerator = Accelerator(cpu=True)
for _ in range(2):
    teacher = nn.Linear(2, 1).requires_grad_(False)
    model = nn.Linear(2, 1)
    teacher, model, optimizer = accelerator.prepare(teacher, model, optim.SGD(model.parameters(), 0.1))
    accelerator.backward((model(ones(1, 2)) - teacher(ones(1, 2))).square().sum())
    optimizer.step()
    teacher, model, optimizer = accelerator.free_memory(teacher, model, optimizer)
model = nn.Linear(2, 1)
try:
    accelerator.prepare(model, optim.SGD([model.weight], 0.1), optim.SGD([model.bias], 0.1))
except InputError as error:
    assert "got 1 models and 2 optimizers" in str(error), error
else:
    raise AssertionError
accelerator = Accelerator(cpu=True, strategy="sync-easgd")
model = nn.Linear(2, 1)
model, optimizer = accelerator.prepare(model, optim.SGD(model.parameters(), 0.1))
for _ in range(10):
    accelerator.backward(model(ones(1, 2)).sum())
    optimizer.step()
accelerator.save_state("state")
accelerator.save_model(model, "saved")
own = model.weight.detach().clone()
with accelerator.evaluating():
    for folder in ("state", "saved"):
        assert equal(load_file(f"{folder}/model.safetensors")["weight"], model.weight), folder
    assert not equal(own, model.weight)
""",
    "lightning": """
import torch
from lightning import Fabric, LightningModule, Trainer
from lightning.fabric.plugins.precision import MixedPrecision
from lightning.pytorch.callbacks import (
    BaseFinetuning, Callback, EMAWeightAveraging, LearningRateFinder, StochasticWeightAveraging
)
from torch import nn
from torch.utils.data import DataLoader
from samovar import InputError
from samovar.integrations.lightning import FabricStrategy, SamovarStrategy

class Words(nn.Identity):
    def get_extra_state(self):
        return {"a": 0}

    def set_extra_state(self, state):
        assert state == {"a": 0}

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.lr, self.net = 0.01, nn.Sequential(Words(), nn.Linear(4, 4), nn.BatchNorm1d(4))

    def training_step(self, batch, _index):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)

quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
loader = DataLoader(torch.randn(32, 4), batch_size=4)
for callback in (LearningRateFinder(num_training_steps=5), StochasticWeightAveraging(0.01, 1)):
    strategy = SamovarStrategy("sync")
    trainer = Trainer(accelerator="cpu", devices=1, strategy=strategy, max_epochs=2, callbacks=[callback], **quiet)
    trainer.fit(Net(), loader)
    assert trainer.global_step >= 16
    trainer.save_checkpoint("saved.ckpt")
    Net.load_from_checkpoint("saved.ckpt")
class Thaw(BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.net)

    def finetune_function(self, module, epoch, optimizer):
        if epoch:
            self.unfreeze_and_add_param_group(module.net, optimizer)

averaging = "choose sync, or leave the callback out"
for strategy, callback, sentence in (
    ("sync-easgd", StochasticWeightAveraging(0.01, 1), averaging),
    ("local-sgd", EMAWeightAveraging(), averaging),
    ("sync", Thaw(), "Thaw unfreezes parameters in the middle"),
):
    strategy = SamovarStrategy(strategy)
    trainer = Trainer(accelerator="cpu", devices=1, strategy=strategy, max_epochs=2, callbacks=[callback], **quiet)
    try:
        trainer.fit(Net(), loader)
    except InputError as error:
        assert sentence in str(error), error
    else:
        raise AssertionError
trainer = Trainer(accelerator="cpu", devices=1, strategy=SamovarStrategy("sync"), max_epochs=1, **quiet)
trainer.fit(Net(), (batch for batch in loader))

class Shown(Callback):
    def on_train_end(self, trainer, module):
        self.weight = module.net[1].weight.detach().clone()

shown, net = Shown(), Net()
strategy = SamovarStrategy("sync-easgd")
trainer = Trainer(accelerator="cpu", devices=1, strategy=strategy, max_epochs=2, callbacks=[shown], **quiet)
trainer.fit(net, loader)
assert torch.equal(shown.weight, net.net[1].weight)
changes = []
for strategy in ("ddp", FabricStrategy("sync")):
    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
    fabric = Fabric(accelerator="cpu", devices=1, strategy=strategy, plugins=[scaled])
    fabric.launch()
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.1))
    fabric.backward(model(torch.ones(3, 4)).float().square().mean())
    fabric.clip_gradients(model, optimizer, max_norm=0.5)
    optimizer.step()
    changes.append(net.weight.detach().clone())
assert torch.allclose(*changes), changes
""",
}


@pytest.mark.parametrize("framework", PROGRAMS)
def test_the_next_wishes_of_a_framework_s_users(framework: str, tmp_path: Path) -> None:
    """Several data sets to evaluate, a second training, a learning rate finder, averaged weights, fp16, a teacher."""
    pytest.importorskip(framework)
    program = [sys.executable, "-c", PROGRAMS[framework]]
    ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
