"""The blocks of a page, and whether what is printed agrees with what is shown. tools/docs_run.py says what they are."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_TOKEN = re.compile(
    r"<!--(?P<comment>.*?)-->|^(?P<indent> *)(?P<fence>`{3,})(?P<language>\w*)[^\n]*\n(?P<body>.*?)^ *(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)


def documents(root: Path) -> list[Path]:
    """All pages of the repository at `root`."""
    return sorted([*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("examples/**/*.md")])


@dataclass(frozen=True)
class Block:
    """A fenced block or a hidden one, with the comments above it; `start` and `end` are its body's in the page."""

    language: str
    body: str
    line: int
    notes: dict[str, str] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    indent: str = ""

    @property
    def is_run(self) -> bool:
        shown = self.language in ("console", "sh", "bash", "python") or "output" in self.notes
        return "not run" not in self.notes and (shown or "file" in self.notes)

    @property
    def is_of_script(self) -> bool:
        """Whether it is a part of the page's Python, or what this prints."""
        return "file" not in self.notes and (self.language == "python" or "output" in self.notes)


def blocks(text: str) -> list[Block]:
    """The blocks of a page, in order."""
    found, notes, before = [], {}, 0
    for token in _TOKEN.finditer(text):
        if text[before : token.start()].strip():
            notes = {}
        before = token.end()
        line = text.count("\n", 0, token.start()) + 1
        if token["comment"] is None:
            indent, body = token["indent"], token["body"]
            body = re.sub(f"^{indent}", "", body, flags=re.MULTILINE)
            found.append(Block(token["language"], body, line, notes, *token.span("body"), indent))
            notes = {}
            continue
        name, _, value = token["comment"].strip().partition(":")
        if name.startswith("hidden "):
            found.append(Block(name.removeprefix("hidden "), f"{value.strip()}\n", line, {"hidden": ""} | notes))
            notes = {}
        else:
            notes[name.strip()] = value.strip()
    return found


@dataclass(frozen=True)
class Step:
    """A command and the lines below it."""

    command: str
    shown: list[str]


def steps(block: Block) -> list[Step]:
    """The commands of a block; output that stands before the first has the command ''."""
    is_plain = block.language != "console" or "hidden" in block.notes
    found: list[Step] = []
    goes_on = False
    for line in block.body.splitlines():
        if goes_on:
            found[-1] = Step(f"{found[-1].command}\n{line}", [])
        elif line.startswith("$ ") or line == "^C" or (is_plain and line.strip()):
            found.append(Step(line.removeprefix("$ "), []))
        elif found:
            found[-1].shown.append(line)
        else:
            found.append(Step("", [line]))
        goes_on = line.endswith("\\") and not found[-1].shown
    return found


_NUMBER = r"[-+−]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?%?"
_MASKS = [
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (re.compile(r"(?<![\w.])~?/[\w.+-]+(?:/[\w.+-]+)*/?"), "<path>"),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{7,}\b"), "<n>"),
    (re.compile(r"[━─╸╺█▏▎▍▌▋▊▉▁▂▃▄▅▆▇░▒▓]+|[#=_-]{3,}"), "<bar>"),
    (re.compile(rf"(?<![A-Za-z_]){_NUMBER}"), "<n>"),
    (re.compile(r"(?<![\w-])[-+]?(?:inf|nan)(?![\w-])"), "<n>"),
    (re.compile(r"<n>(?: ?(?:ns|us|µs|ms|s|min|h)\b(?!-))+"), "<n> s"),
    (re.compile(r"<n> ?(?:[kKMGT]i?)?(?:B|bytes?)\b"), "<n> B"),
    (re.compile(r"(<n> [a-z]+[a-rt-z])s\b"), r"\1"),
    (re.compile(r"(?:<bar>\s*)+"), "<bar> "),
    (re.compile(r"\s+"), " "),
]
# A command says this on a machine that does other work as well.
_BUSY = re.compile("other programs (?:compute on|use) ")


def masked(line: str) -> str:
    """The line without what may differ from run to run."""
    for pattern, instead in _MASKS:
        line = pattern.sub(instead, line)
    return line.strip()


def agree(shown: Sequence[str], printed: Sequence[str], *, whole: bool = True) -> bool:
    """Whether a page shows what was printed; not `whole`: what was printed first."""
    lines = [masked(line) for line in shown]
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else ".*?".join(map(re.escape, line.split("..."))) + r"\n"
        for line in lines
        if line
    )
    text = "".join(f"{line}\n" for line in map(masked, printed) if line and not _BUSY.search(line))
    return bool(re.fullmatch(pattern, text) if whole else re.match(pattern, text))
