"""Programs that use the package, for type checkers. A line that ends in `# wrong` is a mistake of its user."""

_LOOP = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samovar

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)), batch_size=2)
"""

RIGHT = {
    "loop": _LOOP
    + """
replica = samovar.replicate(model, optimizer, "sync-easgd", moving_rate=0.1, sync_period_steps=4, collective="ring")
for x, y in replica.shard(loader, seed=3):
    loss = nn.functional.cross_entropy(model(x), y)
    replica.backward(loss)
    replica.step()
with replica.evaluating():
    print(replica.rank + replica.world_size, replica.step_count, replica.device.type)
replica.finish()
""",
    "spellings": _LOOP
    + """
samovar.replicate(model, optimizer, strategy="sync", bucket_size="layer", compress_always=True, compress="bf16")
samovar.replicate(model, optimizer, "shm-easgd", sync_period=4, max_staleness=2, timeout_s=5.0)
samovar.replicate(model, optimizer, "sync", bucket=1 << 20, compare_weights_steps=100, transport="tcp", key_file="key")
""",
    "optimizers": _LOOP
    + """
several = [torch.optim.AdamW([model.weight], lr=0.1), torch.optim.SGD([model.bias], lr=0.1)]
with samovar.replicate(model, several, "local-sgd", sync_period_steps=8) as replica:
    replica.backward(model(torch.zeros(1, 4)).sum(), more=True, retain_graph=True)
    replica.backward(model(torch.zeros(1, 4)).sum(), inputs=list(model.parameters()))
    replica.step(lambda: [each.step() for each in several])
""",
    "two_replicas": _LOOP
    + """
first = samovar.replicate(model, torch.optim.AdamW([model.weight], lr=0.1))
second = samovar.replicate(model, torch.optim.SGD([model.bias], lr=0.1))
first.backward(model(torch.zeros(1, 4)), gradient=torch.ones(1, 2), also=[second])
first.step()
second.step()
""",
    "reductions": _LOOP
    + """
replica = samovar.replicate(model, optimizer)
accuracy: float = replica.mean(0.5)
count: float = replica.sum(3)
largest: torch.Tensor = replica.max(torch.zeros(3))
names: list[str] = replica.gather(f"rank {replica.local_rank}")
seed: int = replica.broadcast(7, source=0)
replica.barrier()
if replica.is_first:
    print(accuracy, count, largest, names, seed)
""",
    "resume": _LOOP
    + """
replica = samovar.replicate(model, optimizer)
shard = replica.shard(loader)
torch.save(replica.state_dict(), f"rank_{replica.rank}.pt")
replica.load_state_dict(torch.load(f"rank_{replica.rank}.pt", weights_only=True))
for epoch in range(shard.epoch, 3):
    print(f"epoch {epoch} of {len(shard)} batches")
""",
    "center": _LOOP
    + """
from pathlib import Path

boxes = ["host0:4711", "host1:4711"]
replica: samovar.Replica = samovar.replicate(
    model, optimizer, "async-easgd", box=boxes, buffer="net", key_file=Path("box.key"), join=True, overlap="period"
)
print(replica.num_workers, replica.config.name, *replica.notices)
replica.close()
""",
    "own_strategy": _LOOP
    + """
from samovar.strategies.base import Place
from samovar.strategies.local_sgd import LocalSgd

GROWTH = samovar.Setting("growth", float, "How many times longer each period is.", above=1, default=1.5)


@samovar.strategy("growing", settings=(GROWTH,))
class Growing(LocalSgd):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.growth: float = place.chosen["growth"]


samovar.replicate(model, optimizer, Growing, growth=2.0, timeout_s=5.0).finish()
""",
    "box": """\
import numpy as np
import torch

import samovar

box: samovar.box.Box = samovar.box.connect("host:4711", key_file="box.key", timeout_s=5)
with box.buffer("weights", num_elements=8, with_velocity=True) as buffer:
    buffer.put(np.zeros(8, np.float32))
    buffer.accumulate(torch.ones(8), momentum=0.9)
    buffer.exchange(weights := torch.zeros(8), moving_rate=0.25)
    total = float(buffer.get().sum()) + int(buffer.versions[0]) + buffer.num_elements
print(box.names(), samovar.box.connect(["a", "b"]), total)
""",
    "train": """\
from pathlib import Path

import samovar

result = samovar.train(
    Path("solver.prototxt"), workers="auto", strategy="shm-easgd", threads_per_worker=2, iterations=100, quiet=True,
    weights=["a.caffemodel", "b.caffemodel"], box="default", precision="bf16", timeout_s=30.0,
)
print(result.run_folder, result.weights_sha256)
""",
    "caffe": """\
import torch

import samovar

net = samovar.caffe.load("deploy.prototxt", "weights.caffemodel", phase="TEST", batch_size=4)
result = net(torch.zeros(4, 1, 28, 28))
samovar.caffe.save(net, "weights.safetensors")
samovar.caffe.export_onnx(net, "net.onnx")
replica = samovar.replicate(net, torch.optim.Adam(net.parameters()), "diloco", outer_rate=0.7)
""",
    "errors": _LOOP
    + """
import sys

try:
    samovar.replicate(model, optimizer, timeout_s=1.0).finish()
except (samovar.InputError, samovar.NotFinite) as error:
    sys.exit(error.exit_code)
except (samovar.DeadlineExceeded, samovar.RankFailed, samovar.ReplicasDiffer) as error:
    print(error, samovar.__version__)
    raise samovar.SamovarError("stopped") from error
""",
}

WRONG = {
    "name_of_strategy": _LOOP + 'samovar.replicate(model, optimizer, "snyc")  # wrong\n',
    "name": _LOOP
    + """
samovar.replcate(model, optimizer)  # wrong
print(samovar.caffe.laod, samovar.Errors)  # wrong
""",
    "name_of_setting": _LOOP + 'samovar.replicate(model, optimizer, "sync-easgd", moving_rte=0.1)  # wrong\n',
    "type_of_setting": _LOOP
    + """
samovar.replicate(model, optimizer, "sync-easgd", moving_rate="0.1")  # wrong
samovar.replicate(model, optimizer, "local-sgd", sync_period_steps=2.5)  # wrong
samovar.replicate(model, optimizer, "sync", timeout_s="1")  # wrong
""",
    "no_strategy": _LOOP + "samovar.replicate(model, optimizer, nn.Linear)  # wrong\n",
    "no_optimizer": _LOOP
    + """
samovar.replicate(model, list(model.parameters()))  # wrong
samovar.replicate(optimizer, model)  # wrong
samovar.replicate(model)  # wrong
""",
    "loop": _LOOP
    + """
replica = samovar.replicate(model, optimizer)
for x, y in replica.shard([1, 2, 3]):  # wrong
    replica.backward(1.0)  # wrong
    replica.step(optimizer)  # wrong
    replica.zero_grad()  # wrong
""",
    "backward": _LOOP
    + """
replica = samovar.replicate(model, optimizer)
replica.backward(model(torch.zeros(1, 4)).sum(), True)  # wrong
replica.backward(model(torch.zeros(1, 4)).sum(), also=replica)  # wrong
replica.rank = 3  # wrong
""",
    "evaluating": _LOOP
    + """
replica = samovar.replicate(model, optimizer)
for weights in replica.evaluating():  # wrong
    print(weights)
print(replica.finish().accuracy)  # wrong
""",
    "reductions": _LOOP
    + """
replica = samovar.replicate(model, optimizer)
replica.mean("0.5")  # wrong
replica.sum([1.0, 2.0])  # wrong
count: int = replica.max(0.5)  # wrong
replica.broadcast(3, source="first")  # wrong
""",
    "box": """\
import samovar

samovar.box.connect("host:4711", key="box.key")  # wrong
samovar.box.connect(4711)  # wrong
box = samovar.box.connect("host:4711", key_file="box.key")
buffer = box.buffer("weights", "8")  # wrong
buffer.exchange(buffer.get())  # wrong
buffer.accumlate(buffer.get())  # wrong
samovar.box.conect()  # wrong
""",
    "train_and_caffe": """\
import samovar

samovar.train("solver.prototxt", workers="two")  # wrong
samovar.train("solver.prototxt", precision="fp16")  # wrong
samovar.train("solver.prototxt", iteratons=3)  # wrong
samovar.train("solver.prototxt").accuracy.mean()  # wrong
samovar.caffe.load("deploy.prototxt", phase="VAL")  # wrong
samovar.caffe.save("weights.caffemodel", "deploy.prototxt")  # wrong
""",
    "integrations": """\
from samovar.integrations.accelerate import Accelerator

Accelerator(strategy="diloco", settings={"sync_period_steps": 4})
Accelerator(strategy="snyc")  # wrong
Accelerator(settings=4)  # wrong
print(Accelerator().replica.rnk)  # wrong
""",
}
