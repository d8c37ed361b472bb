"""The shape of the package, counted: rooms, names, cycles, and how large it may grow.

    python tools/shape_check.py [ROOT]

Prints `path:line: what is wrong` and exits 1 if there is anything; else one line of counts.
"""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib.util import resolve_name
from pathlib import Path

PACKAGE = "samovar"
MOST_FILES, MOST_LINES = 354, 67_399
MOST_COMMAND_FILES = 22
# Calls and names that exist once, with the files or rooms that may have them.
ONCE = {
    "worker.step": ("the training loop", {"training/loop"}),
    "finish_step": ("a driver of a step", {"strategies", "training", "api", "predict"}),
    "updated": ("a driver of a step", {"strategies", "api"}),
    "Readiness": ("membership", {"strategies", "membership"}),
}
# Programs that a process starts as `python -m MODULE`: the process that starts them does not import their modules.
PROGRAMS = {"samovar.training.rank"}
_MODULE_NAME = re.compile(rf"{PACKAGE}(\.\w+)+")

Trees = Mapping[str, tuple[Path, ast.Module]]


def check(root: Path, trees: Trees | None = None) -> list[str]:
    """All findings under `root`, as `path:line: sentence`; `trees` are its package, where it is parsed already."""
    trees = _parsed(root / "src") if trees is None else trees
    rooms = _rooms(root)
    findings = [*_repeated_classes(trees), *_cycles(trees), *_named_modules(trees, rooms), *_twice(trees)]
    findings += _too_much(trees)
    return [f"{path.relative_to(root)}:{line}: {sentence}" for path, line, sentence in findings]


def counts(trees: Trees) -> str:
    """The size of the package."""
    return f"{_num_lines(trees):,} lines of Python in {len(trees)} files, {len(_commands(trees))} of them in cli/"


def _parsed(source: Path) -> dict[str, tuple[Path, ast.Module]]:
    """The modules by dotted name."""
    paths = {".".join(path.relative_to(source).with_suffix("").parts): path for path in sorted(source.rglob("*.py"))}
    return {
        name.removesuffix(".__init__"): (path, ast.parse(path.read_text(encoding="utf-8")))
        for name, path in paths.items()
    }


def _rooms(root: Path) -> dict[str, int]:
    """Each room's row in the picture, 0 for the leftmost: a room imports from its own and from larger ones."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return {room.strip(" ()"): row for row, layer in enumerate(layers) for room in layer.split("|")}


Found = Iterator[tuple[Path, int, str]]


def _repeated_classes(trees: Trees) -> Found:
    """Two classes with one name; protocols may share the name of a class."""
    borne = defaultdict(list)
    for path, tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not any(ast.unparse(base) == "Protocol" for base in node.bases):
                borne[node.name].append((path, node.lineno))
    for name, places in borne.items():
        for path, line in places[1:]:
            yield path, line, f"class {name} already exists in {places[0][0].name}; give this one another name"


def _cycles(trees: Trees) -> Found:
    """Modules that import each other, also through others."""
    reached: dict[str, set[str]] = {name: set(_imports(name, trees)) for name in trees}
    for through in trees:
        for found in reached.values():
            if through in found:
                found.update(reached[through])
    for name in (name for name, found in reached.items() if name in found):
        yield trees[name][0], 1, "imports itself through other modules: move what both need to a third module"


def _imports(module: str, trees: Trees) -> Iterator[str]:
    path, tree = trees[module]
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                name = f"{source}.{alias.name}"
                found = name if name in trees else source
                if found is not None and _counts(found, trees):
                    yield found
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _counts(alias.name, trees))


def _counts(name: str | None, trees: Trees) -> bool:
    """The package's lazy imports, which name modules in strings."""
    return name in trees and name != PACKAGE


def _named_modules(trees: Trees, rooms: Mapping[str, int]) -> Found:
    """A module that a string names is imported later: it must exist and follow the import direction."""
    for module, (path, tree) in trees.items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            named = node.value
            if not _MODULE_NAME.fullmatch(named) or named in PROGRAMS or named.endswith(".log"):
                continue
            if named not in trees:
                yield path, node.lineno, f"names {named}, which does not exist"
            elif module != PACKAGE and not _may_import(module, named, rooms):
                yield path, node.lineno, f"names {named}, which is not to the right of its own room"


def _twice(trees: Trees) -> Found:
    """A second training loop, driver of a step, or membership."""
    for module, (path, tree) in trees.items():
        places = {"/".join(module.split(".")[1:depth]) for depth in (2, 3)}
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.expr)):
            for what in _mentioned(node):
                if what in ONCE and not ONCE[what][1] & places:
                    kind, where = ONCE[what]
                    yield path, node.lineno, f"{what}: {kind} is in {' and '.join(sorted(where))}, and nowhere else"


def _mentioned(node: ast.expr) -> Iterator[str]:
    """`worker.step` and `step` of a call `self._worker.step(...)`; the names before and after a dot."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield node.func.attr
        yield f"{ast.unparse(node.func.value).rpartition('.')[2].lstrip('_')}.{node.func.attr}"
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield node.value.id


def _may_import(module: str, named: str, rooms: Mapping[str, int]) -> bool:
    """Modules of its own room, and of rooms to the right."""
    own, other = (name.split(".")[1] for name in (module, named))
    return own == other or rooms.get(own, 0) < rooms.get(other, 0)


def _too_much(trees: Trees) -> Found:
    path = trees[PACKAGE][0]
    for what, count, most in (
        ("files", len(trees), MOST_FILES),
        ("lines", _num_lines(trees), MOST_LINES),
        ("files in cli/", len(_commands(trees)), MOST_COMMAND_FILES),
    ):
        if count > most:
            yield path, 1, f"the package has {count:,} {what}, at most {most:,}: find the simpler shape"


def _commands(trees: Trees) -> list[str]:
    return [name for name in trees if name.startswith(f"{PACKAGE}.cli.")]


def _num_lines(trees: Trees) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path, _ in trees.values())


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parents[1]
    trees = _parsed(root / "src")
    found = check(root, trees)
    print(*found or [counts(trees)], sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
