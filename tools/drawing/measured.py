"""The bar figure of measured speed, from the dated results in `docs/pictures/measured.toml`."""

import tomllib
from pathlib import Path
from typing import Any

from drawing.svg import Picture

RESULTS = Path("docs/pictures/measured.toml")
_WIDTH, _LEFT, _ROW = 720.0, 320.0, 30.0


def drawn(root: Path) -> str:
    figure = tomllib.loads((root / RESULTS).read_text(encoding="utf-8"))
    bars: list[dict[str, Any]] = figure["bar"]
    groups = list(dict.fromkeys(bar["group"] for bar in bars))
    told = " ".join(f"{bar['group']}, {bar['name']}: {bar['ratio']:g}." for bar in bars)
    height = 84 + 34 * len(groups) + _ROW * len(bars)
    picture = Picture(_WIDTH, height, figure["title"], told)
    picture.text(16, 27, figure["title"], "text bold", size=16)
    picture.text(16, 47, figure["words"], "soft", size=13)
    most = max(bar["ratio"] for bar in bars)
    scale = (_WIDTH - _LEFT - 70) / most
    y = 60.0
    for group in groups:
        y += 24
        picture.text(16, y, group, "soft", size=14)
        y += 10
        for bar in (bar for bar in bars if bar["group"] == group):
            picture.text(_LEFT - 10, y + 16, bar["name"], size=14, anchor="end")
            picture.line([(_LEFT + scale, y - 4), (_LEFT + scale, y + _ROW - 4)], "rule", 1.2, "4 3")
            picture.rectangle((_LEFT, y, bar["ratio"] * scale, _ROW - 8), "d" if bar["ratio"] >= 1 else "c", 2)
            picture.text(_LEFT + bar["ratio"] * scale + 8, y + 16, f"{bar['ratio']}x", "text bold", size=14)
            y += _ROW
    picture.text(_LEFT + scale, height - 9, "DDP", "soft", size=12, anchor="middle")
    return picture.written()
