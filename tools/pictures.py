"""The pictures of the documents, each made from what it shows: real runs in the simulator, contracts, measured results.

    python tools/pictures.py [NAME ...]      all of them, or those of these names

Writes docs/pictures/NAME.svg: for each strategy a timeline, and `speed-up`, `rooms`, `measured`, `learning`.
The same code gives the same bytes.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from drawing import learned, measured, rooms, speedup, timelines  # noqa: E402

FOLDER = ROOT / "docs/pictures"
MOST_BYTES = 60_000

PICTURES: dict[str, Callable[[], str]] = {
    **{name: partial(timelines.drawn, name) for name in timelines.STRATEGIES},
    "speed-up": speedup.drawn,
    "rooms": partial(rooms.drawn, ROOT),
    "measured": partial(measured.drawn, ROOT),
    "learning": partial(learned.drawn, ROOT),
}


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - PICTURES.keys())
    if unknown:
        print(f"no such picture: {', '.join(unknown)}; there are: {', '.join(PICTURES)}", file=sys.stderr)
        return 2
    FOLDER.mkdir(exist_ok=True)
    for name in names or PICTURES:
        drawn = PICTURES[name]()
        assert len(drawn) <= MOST_BYTES, f"{name}: {len(drawn)} bytes"
        (FOLDER / f"{name}.svg").write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
