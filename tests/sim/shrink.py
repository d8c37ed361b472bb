"""A failing case with as few faults as it needs to fail in the same way.

Source: Zeller and Hildebrandt 2002 (delta debugging).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.sim.script import Script

MOST_PLAYS = 300

# play(case, script): raises if the case fails.
Play = Callable[[Any, Script], object]


@dataclass
class Shrinker:
    """`case` fails with an error of this kind; plays it with fewer faults."""

    play: Play
    case: Any
    kind: type[Exception]
    num_plays: int = 0

    def shortest(self, names: Sequence[str]) -> list[str]:
        """Names of faults without any one of which the case passes, or few after `MOST_PLAYS`."""
        kept, num_parts = list(names), 2
        if self.fails([]):
            return []
        while len(kept) > 1 and self.num_plays < MOST_PLAYS:
            size = -(-len(kept) // num_parts)
            parts = [kept[start : start + size] for start in range(0, len(kept), size)]
            rests = [[name for name in kept if name not in part] for part in parts]
            if (fewer := next(filter(self.fails, [*parts, *rests]), None)) is not None:
                is_part = fewer in parts
                kept, num_parts = fewer, 2 if is_part else max(2, num_parts - 1)
            elif size == 1:
                break
            else:
                num_parts = min(len(kept), 2 * num_parts)
        return kept

    def fails(self, names: Sequence[str]) -> bool:
        """Whether the case still fails in this way with these faults alone."""
        self.num_plays += 1
        try:
            self.play(*_with(self.case, names))
        except Exception as error:
            return type(error) is self.kind
        return False


def story(play: Play, case: Any, error: Exception, faults: dict[str, str]) -> str:
    """A failed case's shortest schedule, a sentence a line, and its end; `faults` are those of the whole case."""
    shrinker = Shrinker(play, case, type(error))
    names = shrinker.shortest(list(faults))
    small, script = _with(case, names)
    try:
        play(small, script)
    except Exception as last:
        error = last
    lines = [f"{number}. {sentence}" for number, sentence in enumerate(script.happened.values(), 1)]
    head = f"the shortest schedule that fails so, of {len(faults)} faults, after {shrinker.num_plays} plays:"
    end = f"It ends with {type(error).__name__}: {error}"
    return "\n".join([head, *(lines or ["no fault at all"]), end, *_notes(error)])


def _with(case: Any, names: Sequence[str]) -> tuple[Any, Script]:
    only = ",".join(names)
    return replace(case, only=only), Script(case.seed, only)


def _notes(error: Exception) -> list[str]:
    return [note for note in getattr(error, "__notes__", ()) if note.startswith("to repeat")]
