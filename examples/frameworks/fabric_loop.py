"""A loop by Lightning's Fabric on several ranks, which it starts: `python examples/frameworks/fabric_loop.py`."""

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from samovar.integrations.lightning import FabricStrategy  # was: from lightning.fabric.strategies import DDPStrategy

strategy = FabricStrategy("sync")  # was: strategy = DDPStrategy()
fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
fabric.launch()
fabric.seed_everything(0)
inputs = torch.randn(1024, 16)
labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 2))
model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=3e-3))
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True))
losses = []
for _ in range(2):
    for number, (x, y) in enumerate(loader):
        is_last_part = number % 2 == 1
        with fabric.no_backward_sync(model, enabled=not is_last_part):
            loss = F.cross_entropy(model(x), y) / 2
            fabric.backward(loss)
        if is_last_part:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(fabric.all_reduce(loss.detach(), reduce_op="mean").item())
if fabric.is_global_zero:
    print("losses", *losses[::8])
    print("final", sum(losses[-8:]) / 8)
