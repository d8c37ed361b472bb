"""Check the documents: links lead somewhere, commands in code blocks exist with their flags, tables are up to date.

python tools/docs_check.py
"""

import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import strategy_tables  # noqa: E402

SAMOVAR = Path(sys.executable).with_name("samovar")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
COMMAND = re.compile(r"^\s*(?:\$ )?(samovar [^#\n]*|make [a-z-]+)", re.MULTILINE)
CODE = re.compile(r"^```[a-z ]*\n(.*?)^```|^(    \S[^\n]*)$", re.MULTILINE | re.DOTALL)


def main() -> int:
    problems = [problem for path in documents() for problem in check(path)]
    if strategy_tables.source() != strategy_tables.OURS.read_text(encoding="utf-8"):
        problems.append(f"{strategy_tables.OURS.relative_to(ROOT)}: is out of date: run `make tables`")
    print("\n".join(problems) if problems else "documents: links and commands are good")
    return 1 if problems else 0


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def check(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT)
    is_stale = strategy_tables.with_tables(text) != text
    stale = [f"{name}: a table is out of date: run `make tables`"] if is_stale else []
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
    """The words without those that `samovar run` passes to the script."""
    if words[1:2] != ["run"]:
        return words
    script = next((place for place, word in enumerate(words) if word.endswith(".py") or words[place - 1] == "-m"), -1)
    return words[:script]


@lru_cache
def help_of(subcommands: tuple[str, ...]) -> str:
    """Every flag: from --help-all, if the command has it, else from --help."""
    for flag in ("--help-all", "--help"):
        command = [SAMOVAR, *subcommands, flag]
        completed = subprocess.run(command, capture_output=True, text=True, check=False, env={"COLUMNS": "200"})
        if completed.returncode == 0:
            return completed.stdout
    return ""


if __name__ == "__main__":
    sys.exit(main())
