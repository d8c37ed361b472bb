"""Check the documents: links lead somewhere, commands in code blocks exist with their flags, tables are up to date.

    python tools/docs_check.py [--write]

Tables between `<!-- made from the code: NAME -->` and `<!-- end -->` come from what strategies declare; --write makes
them anew.
"""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from samovar.strategies.catalog import OURS
from samovar.strategies.traits import declared_settings

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]

ROOT = Path(__file__).resolve().parent.parent
SAMOVAR = Path(sys.executable).with_name("samovar")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
COMMAND = re.compile(r"^\s*(?:\$ )?(samovar [^#\n]*|make [a-z-]+)", re.MULTILINE)
TABLE = re.compile(r"(<!-- made from the code: ([a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
CODE = re.compile(r"^```[a-z ]*\n(.*?)^```|^(    \S[^\n]*)$", re.MULTILINE | re.DOTALL)


def main(arguments: Sequence[str] = ()) -> int:
    if "--write" in arguments:
        for path in documents():
            path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
    problems = [problem for path in documents() for problem in check(path)]
    print("\n".join(problems) if problems else "documents: links and commands are good")
    return 1 if problems else 0


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def check(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT)
    stale = (
        [] if with_tables(text) == text else [f"{name}: a table is out of date: {sys.argv[0]} --write makes it anew"]
    )
    broken = [f"{name}: no such file: {link}" for link in LINK.findall(text) if not (path.parent / link).exists()]
    code = "\n".join(fenced or indented for fenced, indented in CODE.findall(text))
    return broken + stale + [f"{name}: {problem}" for command in COMMAND.findall(code) for problem in wrong(command)]


def wrong(command: str) -> list[str]:
    words = own_words(command.split())
    if words[0] == "make":
        verbs = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return [] if words[1] in verbs else [f"no such verb: {command}"]
    flags = [word.split("=")[0] for word in words if word.startswith("--")]
    subcommands = tuple(word for word in words[1:3] if re.fullmatch(r"[a-z][a-z0-9-]*", word))
    known = help_of(subcommands if subcommands[:1] in (("data",), ("box",)) else subcommands[:1])
    return [f"no such flag: {flag} in {command!r}" for flag in flags if flag not in known]


def own_words(words: list[str]) -> list[str]:
    """Without what `samovar run` hands on to the script."""
    if words[1:2] != ["run"]:
        return words
    script = next((place for place, word in enumerate(words) if word.endswith(".py") or words[place - 1] == "-m"), -1)
    return words[:script]


def with_tables(text: str) -> str:
    return TABLE.sub(lambda found: f"{found[1]}{table(found[2])}{found[4]}", text)


def table(name: str) -> str:
    head, rows = {"strategies": strategies, "settings": settings, "spellings": spellings}[name]()
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def strategies() -> Table:
    """In the words of `samovar.replicate`."""
    rows: list[tuple[str, ...]] = []
    for kind in OURS:
        told = [
            f"`{setting.argument}`" + (f" ({listed(setting.choices)})" if setting.choices else "")
            for setting in kind.traits.settings
        ]
        rows.append((f"`{kind.traits.name}`", kind.traits.exchange, kind.traits.waits_for, ", ".join(told)))
    return ("`strategy`", "exchanges", "waits for", "settings"), rows


def settings() -> Table:
    """In the words of `samovar train`."""
    rows: list[tuple[str, ...]] = []
    letters: dict[type, str] = {bool: "", float: "X"}
    for name in declared_settings():
        found = {kind.traits.name: setting for kind in OURS if (setting := kind.traits.setting(name)) is not None}
        first = next(iter(found.values()))
        if not first.has_flag:
            continue
        value = "NAME" if first.kind is str else letters.get(first.kind, first.unit.upper() or "N")
        flag = f"`{first.flag} {value}`".replace(" `", "`")
        meaning = first.help.replace("|", "\\|")
        if choices := divided({strategy: listed(setting.choices) for strategy, setting in found.items()}):
            meaning = f"{meaning} {choices}"
        default = divided({strategy: setting.default_words for strategy, setting in found.items()})
        rows.append((flag, default, listed(tuple(found)), meaning))
    return ("Flag", "Default", "Of", "Meaning"), rows


def spellings() -> Table:
    found = [own[0] for own in declared_settings().values() if own[0].has_flag and len(own[0].spellings) > 1]
    rows: list[tuple[str, ...]] = [
        (f"`{setting.argument}`, `{setting.spellings[1]}`", f"`{setting.flag}`") for setting in found
    ]
    return ("here, in both spellings", "`samovar train`"), rows


def listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def divided(words: Mapping[str, str]) -> str:
    """Whose are which, where they differ."""
    groups: dict[str, list[str]] = {}
    for strategy, word in words.items():
        groups.setdefault(word, []).append(strategy)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{word} ({listed(names)})" for word, names in groups.items())


@lru_cache
def help_of(subcommands: tuple[str, ...]) -> str:
    completed = subprocess.run(
        [SAMOVAR, *subcommands, "--help"], capture_output=True, text=True, check=False, env={"COLUMNS": "200"}
    )
    return completed.stdout if completed.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
