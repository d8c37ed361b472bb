"""Thousands of blindly damaged files of three formats, each campaign with its unchanged files first."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz import material
from tests.fuzz.binaries import beside_weights
from tests.fuzz.case import READ, Case, damaged, file_case
from tests.fuzz.data_sets import LMDB_NET

CAMPAIGNS = ("lmdb", "caffemodel", "solverstate")
NUM_BLOCKS = 5
NUM_A_BLOCK = 1000  # damaged files of each campaign
_NUM_RECORDS = 60  # on several pages of a database
_FILES: dict[str, dict[str, Callable[[], bytes]]] = {
    "caffemodel": {
        "small.caffemodel": material.caffemodel,
        "old.caffemodel": material.old_caffemodel,
        "small.caffemodel.h5": material.caffemodel_hdf5,
    },
    "solverstate": {
        "small.solverstate": material.solverstate,
        "small.solverstate.h5": material.solverstate_hdf5,
    },
}


def campaign_cases(name: str) -> Iterator[Case]:
    """Block `name`, as "lmdb@3": other blocks have other damages."""
    campaign, _, block = name.partition("@")
    sources = {"data.mdb": database} if campaign == "lmdb" else _FILES[campaign]
    for file_name, content in sources.items():
        yield _case(campaign, f"unchanged {file_name}", file_name, content(), READ)
    for number, (file_name, content) in enumerate(sources.items()):
        count = NUM_A_BLOCK // len(sources)
        for damage, bad in damaged(content(), count, seed=1000 + 10 * int(block) + number):
            yield _case(campaign, f"{name} {file_name}, {damage}", file_name, bad)


def _case(campaign: str, name: str, file_name: str, content: bytes, expected: str = "") -> Case:
    if campaign == "lmdb":
        return Case(f"data: {name}", "data", partial(_write_database, content), expected)
    case = file_case(campaign, name, file_name, content, expected)
    return Case(case.name, case.kind, beside_weights(case), expected) if campaign == "solverstate" else case


def _write_database(content: bytes, folder: Path) -> Path:
    database = folder / "images_lmdb"
    database.mkdir()
    (database / "data.mdb").write_bytes(content)
    net = folder / "net.prototxt"
    net.write_text(LMDB_NET)
    return net


@cache
def database() -> bytes:
    """A sound database's file."""
    with TemporaryDirectory() as folder:
        path = material.write_database(Path(folder) / "made", [material.datum(index) for index in range(_NUM_RECORDS)])
        return (path / "data.mdb").read_bytes()
