"""Make tables in the documents, and source for type checkers, from the declarations of strategies.

    python tools/strategy_tables.py

Writes `src/samovar/strategies/ours.py` and the tables between `<!-- made from the code: NAME -->` and `<!-- end -->`.
A new file in `strategies/` is found automatically. Strategies keep their order; a new one is last.
"""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from samovar.strategies.catalog import ADVICE
from samovar.strategies.config import StrategyConfig

ROOT = Path(__file__).resolve().parent.parent
STRATEGIES = ROOT / "src/samovar/strategies"
OURS = STRATEGIES / "ours.py"
SECTIONS = "settings of each strategy"
TABLE = re.compile(r"(<!-- made from the code: ([a-z -]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_DECORATOR = "strategy"
_FEW_WORKERS = 4

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]

_HEAD = '''"""Our own strategies, with their names and settings for type checkers. `make tables` makes this file."""

from typing import Literal, TypeAlias, TypedDict

{imports}

OURS: tuple[type[Strategy], ...] = ({classes},)

StrategyName: TypeAlias = Literal[{names},]


class Settings(TypedDict, total=False):
    """The settings that `samovar.replicate` takes after the strategy's name, each in both spellings."""

{settings}
'''


@cache
def declared() -> dict[str, tuple[str, str]]:
    """Module and class of each strategy by its name, in their order."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(STRATEGIES.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef):
                continue
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == _DECORATOR:
                    name = ast.literal_eval(call.args[0])
                    found[name] = f"samovar.strategies.{path.stem}", node.name
    order = re.findall(r'^    "([a-z0-9-]+)",$', OURS.read_text(encoding="utf-8"), re.MULTILINE)
    known = [name for name in order if name in found]
    return {name: found[name] for name in (*known, *sorted(found.keys() - set(known)))}


def classes() -> list[Any]:
    return [getattr(importlib.import_module(module), name) for module, name in declared().values()]


def source() -> str:
    """The text of `ours.py`, as ruff formats it."""
    strategies = declared()
    settings = {setting.name: setting for kind in classes() for setting in kind.traits.settings}
    lines = []
    for setting in settings.values():
        kind = "int | str" if setting.name == "bucket_size_bytes" else setting.kind.__name__
        rest = "" if setting.name == "always_compresses" else " | None"
        lines += [f"    {spelling}: {kind}{rest}" for spelling in setting.spellings]
    imports = [f"from {module} import {name}" for module, name in strategies.values()]
    text = _HEAD.format(
        imports="\n".join(["from samovar.strategies.base import Strategy", *imports]),
        classes=", ".join(name for _, name in strategies.values()),
        names=", ".join(f'"{name}"' for name in strategies),
        settings="\n".join(lines),
    )
    return _laid_out(_laid_out(text, "check", "--select", "I", "--fix", "--quiet"), "format", "--quiet")


def _laid_out(text: str, *words: str) -> str:
    command = [str(Path(sys.executable).with_name("ruff")), *words, "--stdin-filename", str(OURS), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def with_tables(text: str) -> str:
    return TABLE.sub(lambda found: f"{found[1]}{table(found[2])}{found[4]}", text)


def table(name: str) -> str:
    if name == SECTIONS:
        return "".join(section(kind) for kind in classes())
    made = {"strategies": strategies, "settings": settings, "spellings": spellings, "advice": advised}
    head, rows = made[name]()
    return _written(head, rows)


def _written(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def strategies() -> Table:
    """One row for each: what travels, and what a worker waits for."""
    rows: list[tuple[str, ...]] = [
        (f"[`{kind.traits.name}`](#{kind.traits.name})", kind.traits.exchange, kind.traits.waits_for)
        for kind in classes()
    ]
    return ("Strategy", "A worker exchanges", "It waits for"), rows


def advised() -> Table:
    """One row for each kind of link and of workers' speeds."""
    rows: list[tuple[str, ...]] = [(one.link, one.speeds, f"`{one.flags}`", one.exchanges, one.words) for one in ADVICE]
    return ("Link", "Workers' speeds", "Take", "A worker exchanges", "Result and price"), rows


def section(kind: Any) -> str:
    """A strategy's settings: as a flag, in Python, default, values, meaning."""
    rows = []
    for setting in kind.traits.settings:
        flag = _with_value(setting) if setting.has_flag else "-"
        spelled = ", ".join(f"`{spelling}`" for spelling in setting.spellings)
        values = listed(setting.choices) if setting.choices else _values(setting)
        rows.append((flag, spelled, _default(kind, setting), values, setting.help.replace("|", "\\|")))
    head = ("Flag", "In Python", "Default", "Values", "Meaning")
    return f"\n### {kind.traits.name}\n\n{_written(head, rows)}"


def _default(kind: Any, setting: Any) -> str:
    """The default, and the value of the strategy's recipe if it has one."""
    recipe = kind.traits.recipe
    if recipe is None or setting.name not in recipe.settings:
        return str(setting.default_words)
    return f"{setting.default_words}; {_of_recipe(recipe.settings[setting.name], kind.traits.name)} by its recipe"


def _of_recipe(rule: Any, name: str) -> str:
    """The value for any number of workers, or what is divided by that number."""
    few, more = (rule(StrategyConfig(name), _FEW_WORKERS * times) for times in (1, 2))
    if few is True:
        return "on"
    return f"{few:g}" if few == more else f"{few * _FEW_WORKERS:g} / workers"


def _values(setting: Any) -> str:
    if setting.kind is bool:
        return "on or off"
    return f"{setting.unit}, {setting.limits}" if setting.unit else setting.limits


def settings() -> Table:
    """One row for each flag, in the words of `samovar train`."""
    rows: list[tuple[str, ...]] = []
    for name in settings_of_ours():
        found = {kind.traits.name: setting for kind in classes() if (setting := kind.traits.setting(name)) is not None}
        first = next(iter(found.values()))
        if not first.has_flag:
            continue
        meaning = first.help.replace("|", "\\|")
        if choices := divided({strategy: listed(setting.choices) for strategy, setting in found.items()}):
            meaning = f"{meaning} {choices}"
        default = divided({strategy: setting.default_words for strategy, setting in found.items()})
        rows.append((_with_value(first), default, listed(tuple(found)), meaning))
    return ("Flag", "Default", "Of", "Meaning"), rows


def _with_value(setting: Any) -> str:
    return f"`{setting.flag} {setting.metavar}`".replace(" `", "`")


def spellings() -> Table:
    found = [own[0] for own in settings_of_ours().values() if own[0].has_flag and len(own[0].spellings) > 1]
    rows: list[tuple[str, ...]] = [
        (f"`{setting.argument}`, `{setting.spellings[1]}`", f"`{setting.flag}`") for setting in found
    ]
    return ("here, in both spellings", "`samovar train`"), rows


def settings_of_ours() -> dict[str, list[Any]]:
    """Each setting as every strategy that has it declares it."""
    found: dict[str, list[Any]] = {}
    for kind in classes():
        for setting in kind.traits.settings:
            found.setdefault(setting.name, []).append(setting)
    return found


def listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def divided(words: Mapping[str, str]) -> str:
    """The values with the strategies that have them; the value alone if all have the same."""
    groups: dict[str, list[str]] = {}
    for strategy, word in words.items():
        groups.setdefault(word, []).append(strategy)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{word} ({listed(names)})" for word, names in groups.items())


def main() -> int:
    OURS.write_text(source(), encoding="utf-8")
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
