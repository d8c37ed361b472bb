"""The rooms of the package and who may import whom, drawn from the contract that `make lint` checks."""

import tomllib
from pathlib import Path

from drawing.svg import Picture

# A few words for each room.
WORDS = {
    "cli": "the commands",
    "integrations": "loops of other frameworks",
    "training": "one rank of train",
    "api": "replicate",
    "caffe": "Caffe nets in Python",
    "files": "inspect, convert",
    "predict": "what-if runs",
    "launcher": "starts and watches ranks",
    "config": "one run's settings",
    "frontends": "Caffe and torch nets",
    "membership": "who trains together",
    "launch": "processes, environment",
    "report": "progress, results",
    "model": "forward, backward",
    "solver": "update rules",
    "data": "batches",
    "strategies": "when, and what",
    "checkpoint": "snapshots",
    "box": "parameter server",
    "collectives": "to whom, in which order",
    "formats": "files of others",
    "transports": "how bytes move",
    "core": "buffers, groups, errors",
    "_native": "C++ core",
}
_WIDTH, _ROW, _GAP, _MARGIN = 720.0, 46.0, 22.0, 16.0


def layers(root: Path) -> list[list[str]]:
    """The rooms of each row, from the one that imports most; rooms that do not exist yet are left out."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    rooms = [[room.strip(" ()") for room in row.split("|")] for row in rows]
    package = root / "src/samovar"
    there = {path.stem for path in package.iterdir() if path.stem != "__main__"} | {"_native"}
    found = [[room for room in row if room in there] for row in rooms]
    return [row for row in found if row]


def drawn(root: Path) -> str:
    rows = layers(root)
    told = "; ".join(", ".join(row) for row in rows)
    height = 60 + len(rows) * (_ROW + _GAP)
    picture = Picture(_WIDTH, height, "The rooms of src/samovar", f"From top to bottom, imports go down only: {told}.")
    picture.text(_MARGIN, 27, "src/samovar: imports go down only", "text bold", size=16)
    picture.text(_WIDTH - _MARGIN, 27, "rooms side by side do not import each other", "soft", size=13, anchor="end")
    for index, row in enumerate(rows):
        _row(picture, 46 + index * (_ROW + _GAP), row, is_last=index == len(rows) - 1)
    return picture.written()


def _row(picture: Picture, top: float, row: list[str], *, is_last: bool) -> None:
    each = (_WIDTH - 2 * _MARGIN + 10) / max(3, len(row))
    left = (_WIDTH - each * len(row) + 10) / 2
    for place, room in enumerate(row):
        x = left + place * each
        picture.rectangle((x, top, each - 10, _ROW), "box", 5)
        middle = x + (each - 10) / 2
        picture.text(middle, top + 19, room, "text bold", size=14, anchor="middle")
        picture.text(middle, top + 36, WORDS[room], "soft", size=11.5, anchor="middle")
    if not is_last:
        x, y = _WIDTH / 2, top + _ROW
        picture.line([(x, y + 4), (x, y + _GAP - 4)], "rule", 1.5)
        picture.line([(x - 4, y + _GAP - 9), (x, y + _GAP - 4), (x + 4, y + _GAP - 9)], "rule", 1.5)
