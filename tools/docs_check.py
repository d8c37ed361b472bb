"""Check the documents: links, anchors, blocks, commands with their flags, rooms, and pages made from the code.

python tools/docs_check.py
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import command_reference  # noqa: E402
import python_names  # noqa: E402
import strategy_tables  # noqa: E402
from docs_blocks import Step, blocks, documents, steps  # noqa: E402
from drawing import rooms  # noqa: E402

LANGUAGES = ("console", "sh", "python", "text", "prototxt", "json", "toml", "yaml", "make", "dockerfile", "cpp")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")
# Up to what ends it, also behind variables, in a loop, and behind another command that starts it.
COMMAND = re.compile(r"^make [a-z-]+|(?:^|(?<=[\s(]))samovar (?=[A-Za-z-])[^#\n|;&)>]*")
OF_OTHERS = re.compile(r"(?:\S*python -m )?(?:\S*pip|git|docker build) ")
ROOM_TABLE = re.compile(r"^\| Room .*\n((?:\|.*\n)+)", re.MULTILINE)
INDENTED = re.compile(r"\n\n    (?:\$ )?((?:samovar|make|python|pip|git|torchrun|mpiexec|srun) [^\n]*)")
PUNCTUATION = re.compile(r"[^\w\- ]")


def main() -> int:
    problems = [problem for path in documents(ROOT) for problem in check(path)]
    if strategy_tables.source() != strategy_tables.OURS.read_text(encoding="utf-8"):
        problems.append(f"{strategy_tables.OURS.relative_to(ROOT)}: is out of date: run `make tables`")
    print("\n".join(problems) if problems else "documents: links, blocks and commands are good")
    return 1 if problems else 0


def check(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    sentences = [*broken_links(path, text), *unclear_blocks(text), *stale(path, text), *other_rooms(text)]
    for block in blocks(text):
        lines = steps(block) if block.language in ("console", "sh") else []
        sentences += [problem for line in lines for command in commands(line) for problem in wrong(command)]
    return [f"{path.relative_to(ROOT)}: {sentence}" for sentence in sentences]


def commands(step: Step) -> list[str]:
    line = step.command.replace("\\\n", " ")
    return [] if OF_OTHERS.match(line) else COMMAND.findall(line)


def stale(path: Path, text: str) -> Iterator[str]:
    if strategy_tables.with_tables(text) != text or command_reference.with_commands(text) != text:
        yield "is out of date: run `make tables`"
    if path == python_names.PAGE:
        yield from python_names.wrong(text)


def broken_links(path: Path, text: str) -> Iterator[str]:
    for link in LINK.findall(without_code(text)):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.is_file():
            yield f"no such file: {link}"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"no such heading: {link}"


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", without_code(path.read_text(encoding="utf-8")), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = PUNCTUATION.sub("", words.lower()).replace(" ", "-")
        numbers = (f"{slug}-{number}" for number in range(1, 1000))
        found.add(slug if slug not in found else next(one for one in numbers if one not in found))
    return found


def without_code(text: str) -> str:
    """The page with its fenced blocks emptied."""
    for block in reversed(blocks(text)):
        if block.end:
            text = text[: block.start] + text[block.end :]
    return text


def unclear_blocks(text: str) -> Iterator[str]:
    for block in blocks(text):
        if block.end and block.language not in LANGUAGES:
            yield f"line {block.line}: a block's language is one of {', '.join(LANGUAGES)}; got {block.language!r}"
    for command in INDENTED.findall(without_code(text)):
        yield f"put this command into a console block: {command}"


def other_rooms(text: str) -> Iterator[str]:
    """Rooms that a page draws with letters, or lists in a table, and that are not those of the contract."""
    drawn = [re.findall(r"\w+|->", block.body) for block in blocks(text) if "-> core -> _native" in block.body]
    listed = [re.findall(r"^\| `(\w+)", table, re.MULTILINE) for table in ROOM_TABLE.findall(text)]
    rows = rooms.layers(ROOT) if drawn or listed else []
    wanted = " -> ".join(" ".join(row) for row in rows).split()
    if any(words != wanted for words in drawn):
        yield f"draws other rooms than pyproject.toml: {' '.join(wanted)}"
    if any({"->", *names} != set(wanted) for names in listed):
        yield f"lists other rooms than pyproject.toml: {' '.join(wanted)}"


def wrong(command: str) -> list[str]:
    words = own_words(command.split())
    if words[0] == "make":
        verbs = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return [] if words[1] in verbs else [f"no such verb: {command}"]
    known = command_reference.commands()
    name = next((tuple(words[1:end]) for end in (3, 2) if tuple(words[1:end]) in known), ())
    if not name and not words[1].startswith(("-", "COMMAND")):
        return [f"no such command: {command}"]
    flags = {word.split("=")[0] for word in words if word.startswith("--")}
    return [f"no such flag: {flag} in {command!r}" for flag in sorted(flags - command_reference.flags_of(name))]


def own_words(words: list[str]) -> list[str]:
    """The command without the words that `samovar run` passes to the script."""
    if words[1:2] != ["run"]:
        return words
    script = next((place for place, word in enumerate(words) if word.endswith(".py") or words[place - 1] == "-m"), None)
    return words[:script]


if __name__ == "__main__":
    sys.exit(main())
