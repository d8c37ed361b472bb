"""Lightning's Trainer on several ranks, which it starts itself: `python examples/frameworks/lightning_trainer.py`."""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from samovar.integrations.lightning import SamovarStrategy  # was: from lightning.pytorch.strategies import DDPStrategy

Batch = list[torch.Tensor]


class Classifier(lightning.LightningModule):
    """A perceptron; every rank keeps the mean of its losses."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 2))
        self.losses: list[float] = []

    def training_step(self, batch: Batch, _index: int) -> torch.Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(float(self.trainer.strategy.reduce(loss.detach().clone(), reduce_op="mean")))
        return loss

    def validation_step(self, batch: Batch, _index: int) -> None:
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


lightning.seed_everything(0)
inputs = torch.randn(1024, 16)
labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
loader = DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(inputs[:128], labels[:128]), batch_size=16)
model = Classifier()
strategy = SamovarStrategy("sync")  # was: strategy = DDPStrategy()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=strategy,
    max_epochs=2,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
)
trainer.fit(model, loader, held_out)
if trainer.is_global_zero:
    print("losses", *model.losses[::8])
    print("final", trainer.callback_metrics["val_loss"].item())
