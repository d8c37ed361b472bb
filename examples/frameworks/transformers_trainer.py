"""Hugging Face Trainer on several ranks: `samovar run -n 2 examples/frameworks/transformers_trainer.py`."""

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from samovar.integrations.transformers import Trainer  # was: from transformers import Trainer


class Parity(Dataset[dict[str, torch.Tensor]]):
    """Sentences of 8 words; the label is whether the first is an even one."""

    def __init__(self, size: int) -> None:
        self._words = torch.randint(0, 32, (size, 8), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = self._words[index]
        return {"input_ids": words, "labels": words[0] % 2}


torch.manual_seed(0)
config = BertConfig(
    vocab_size=32,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
model = BertForSequenceClassification(config)
arguments = TrainingArguments(
    output_dir="runs/transformers",
    use_cpu=True,
    max_steps=30,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=2,
    learning_rate=3e-3,
    logging_steps=5,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Parity(2048), eval_dataset=Parity(256))
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
loss = trainer.evaluate()["eval_loss"]
if trainer.is_world_process_zero():
    print("losses", *losses)
    print("final", loss)
trainer.accelerator.end_training()
