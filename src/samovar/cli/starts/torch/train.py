"""A small PyTorch training script that runs on one rank or on many: samovar run -n 2 train.py"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samovar

torch.manual_seed(0)  # every rank makes the same data and the same first weights
points = torch.rand(4096, 2) * 2 - 1
data = TensorDataset(points, (points.norm(dim=1) < 0.8).long())  # inside a circle, or outside
model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

# Another strategy: strategy="local-sgd", "sync-easgd", "shm-easgd", ... `samovar train --help` lists them.
replica = samovar.replicate(model, optimizer, strategy="sync")  # added
loader = replica.shard(DataLoader(data, batch_size=32, shuffle=True))  # each rank reads its own part

for _epoch in range(10):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        replica.backward(loss)  # was: loss.backward()
        replica.step()  # was: optimizer.step()

replica.finish()  # from here on all ranks have the same weights
if replica.is_first:
    accuracy = (model(points).argmax(1) == data.tensors[1]).float().mean()
    print(f"{replica.world_size} ranks, accuracy {accuracy:.3f}")
