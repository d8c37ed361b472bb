"""The sentence that ends a run of scripts."""

import signal
from collections.abc import Sequence
from typing import Protocol


class End(Protocol):
    """How a rank ended: its exit code, minus a signal's number, or None where the launcher ended it."""

    @property
    def rank(self) -> int: ...

    @property
    def process_id(self) -> int: ...

    @property
    def return_code(self) -> int | None: ...

    @property
    def seconds(self) -> float: ...


def end_sentence(first: End, ends: Sequence[End], host: str, passed_on: Sequence[int]) -> str:
    """Who failed first, where, how, when, after which signals, and what became of the others."""
    asked = f", {signal_names(passed_on)} having been passed on" if passed_on else ""
    sentence = f"rank {first.rank} (on {host}, process {first.process_id}) {how(first.return_code)}"
    return f"{sentence} after {first.seconds:.1f} s{asked}{_others(first, ends)}"


def how(return_code: int | None) -> str:
    """The way a process ended, in words."""
    if return_code is None:
        return "was ended"
    if return_code >= 0:
        return f"ended with exit code {return_code}"
    hint = ", perhaps by the system for lack of memory," if -return_code == signal.SIGKILL else ""
    return f"was killed by signal {-return_code} ({signal_names([-return_code])}){hint}"


def signal_names(numbers: Sequence[int]) -> str:
    """SIGINT, SIGTERM; numbers where there are no names."""
    names = {known.value: known.name for known in signal.Signals}
    return ", ".join(dict.fromkeys(names.get(number, str(number)) for number in numbers))


def _others(first: End, ends: Sequence[End]) -> str:
    others = [end for end in ends if end.rank != first.rank]
    parts = {
        "failed too": [end.rank for end in others if end.return_code],
        "had ended well": [end.rank for end in others if end.return_code == 0],
        "{was} ended with it": [end.rank for end in others if end.return_code is None],
    }
    return "".join(f"; {_ranks(ranks, what)}" for what, ranks in parts.items() if ranks)


def _ranks(ranks: Sequence[int], what: str) -> str:
    """rank 3 was ended with it; ranks 0 to 2 and 5 were ended with it."""
    what = what.replace("{was}", "was" if len(ranks) == 1 else "were")
    return f"rank{'' if len(ranks) == 1 else 's'} {_listed(sorted(ranks))} {what}"


def _listed(ranks: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [word for run in runs for word in (map(str, run) if len(run) < 3 else [f"{run[0]} to {run[-1]}"])]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
