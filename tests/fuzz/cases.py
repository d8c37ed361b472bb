"""All mutated inputs by kind; a kind with "@" is a block of a campaign."""

from collections.abc import Iterable, Iterator

from tests.fuzz.binaries import datum_cases, idx_cases, mean_cases, state_cases, weight_cases
from tests.fuzz.campaigns import campaign_cases
from tests.fuzz.case import Case
from tests.fuzz.data_sets import data_cases
from tests.fuzz.nets import net_cases, solver_cases
from tests.fuzz.tensors import numpy_cases, tensor_cases

_CASES = {
    "net": net_cases,
    "solver": solver_cases,
    "caffemodel": weight_cases,
    "solverstate": state_cases,
    "mean": mean_cases,
    "datum": datum_cases,
    "idx": idx_cases,
    "tensors": tensor_cases,
    "mean_npy": numpy_cases,
    "data": data_cases,
}
KINDS = tuple(_CASES)


def cases_of(kinds: Iterable[str]) -> Iterator[Case]:
    for kind in kinds:
        yield from campaign_cases(kind) if "@" in kind else _CASES[kind]()
