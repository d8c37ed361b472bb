"""Which gradients of a profiled loop count as faster in the place where `sync` exchanges them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from samovar.api import exchanges, profile
from samovar.frontends.torch.backward_pass import BackwardPass
from samovar.report.profile import load_profile

ROWS, NUM_WORDS, SIZE = 4, 5, 3
Loss = Callable[[nn.ModuleDict, torch.Tensor], torch.Tensor]
LOSSES: dict[str, Loss] = {
    "apart": lambda net, words: net["linear"](net["embedding"](words)).sum(),
    "twice": lambda net, words: net["linear"](torch.cat([net["embedding"](words)] * 2)).sum(),
    "tied": lambda net, words: (net["embedding"](words) @ net.get_parameter("linear.weight").t()).sum(),
    "recurrent": lambda net, words: net["lstm"](net["embedding"](words))[0].sum(),
}


@pytest.mark.parametrize(
    ("name", "rows"),
    [("apart", ROWS), ("twice", 2 * ROWS), ("tied", 0), ("recurrent", 0), ("added to", 0), ("bf16", 0)],
)
def test_only_products_that_sync_makes_in_place_have_fresh_memory(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(exchanges, "LEAST_IN_PLACE_BYTES", 0)
    monkeypatch.setattr(profile, "_fresh_s", lambda _weight, num_rows: float(num_rows))
    net = nn.ModuleDict(
        {"embedding": nn.Embedding(NUM_WORDS, SIZE), "linear": nn.Linear(SIZE, NUM_WORDS), "lstm": nn.LSTM(SIZE, SIZE)}
    )
    if name == "tied":
        net["linear"].weight = net["embedding"].weight
    measured = profile.LoopProfile(net, dict(net.named_parameters()), tmp_path / "net.json", 1, ROWS, is_adaptive=True)
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=name == "bf16"):
            loss = LOSSES.get(name, LOSSES["apart"])(net, torch.arange(ROWS))
        measured.backward(BackwardPass(loss), ROWS)
        measured.stepped(0.0)
        if name != "added to":
            net.zero_grad()
    measured.close()
    written = load_profile(tmp_path / "net.json")
    assert written.is_adaptive
    fresh_s = {layer.name: layer.fresh_s for layer in written.layers}
    assert fresh_s.pop("linear", 0.0) == rows
    assert not any(fresh_s.values())
