"""Check documents, docstrings and the messages of programs against docs/style.md.

    python tools/prose_check.py [--style FILE] [FILE...]

Prints `file:line: rule: the text's beginning: what to do` for each finding, and exits 1 if there is any. Without files
it checks the whole repository. The words to avoid come from the table in docs/style.md.
"""

import argparse
import ast
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STYLE = ROOT / "docs" / "style.md"
PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md", ".github/**/*.md")
SOURCES = ("src/**/*.py", "examples/**/*.py", "tools/**/*.py", "benchmarks/**/*.py")
SKIPPED_FOLDERS = {"build", ".venv", "__pycache__", "out", "runs"}
MOST_WORDS, MOST_CELL_WORDS, MOST_MEDIAN, MOST_SEMICOLONS = 30, 20, 16, 1
FEWEST_PROSE_WORDS = 6  # a shorter string is a name, a format or a key
FEWEST_FOR_MEDIAN = 3  # sentences
_SHOWN = 60


@dataclass(frozen=True)
class Text:
    """A block of prose: a paragraph, a list item, a heading, a table cell, or one string of a program."""

    line: int
    text: str
    kind: str = "paragraph"


@dataclass(frozen=True)
class Avoided:
    """Words that docs/style.md avoids, what to write, and the uses that are fine."""

    words: re.Pattern[str]
    instead: str
    fine: re.Pattern[str] | None

    def found(self, sentence: str) -> str:
        """The first of the words in `sentence`; "" if there is none."""
        rest = self.fine.sub("`", sentence) if self.fine else sentence
        match = self.words.search(rest)
        return " ".join(match[0].split()) if match else ""


@dataclass(frozen=True)
class Finding:
    line: int
    rule: str
    text: str
    advice: str

    def __str__(self) -> str:
        beginning = " ".join(self.text.split())
        shown = beginning if len(beginning) <= _SHOWN else f"{beginning[:_SHOWN].rstrip()}..."
        return f"{self.line}: {self.rule}: {shown}: {self.advice}"


# Markdown

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCE = re.compile(r"^[ >]*(```+|~~~+)")
_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\](?:\([^()\s]*(?:\([^()]*\)[^()]*)?\)|\[[^\[\]]*\])")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?")
_RULE = re.compile(r"^\s*(?:-{3,}|\*{3,}|_{3,}|\|[\s:|-]*\|)\s*$")
_TARGET = re.compile(r"^\s*\[[^\]]+\]:\s")
_BAR = re.compile(r"(?<!\\)\|")


def markdown(source: str) -> Iterator[Text]:
    """The prose of a page, without code, link targets and comments."""
    source = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), source)
    gathered: list[str] = []
    first = 0
    for number, line in _outside_fences(source.splitlines()):
        starts = _ITEM.match(line)
        if gathered and (not line or starts or line.startswith(("#", "|"))):
            yield Text(first, _plain("\n".join(gathered)))
            gathered = []
        if line.startswith("#"):
            yield Text(number, _plain(line.lstrip("# ")), "heading")
        elif line.startswith("|"):
            cells = _BAR.split(_plain(line).strip().strip("|"))
            yield from (Text(number, cell.strip(), "cell") for cell in cells)
        elif line:
            first = first if gathered else number
            gathered.append(line[starts.end() :] if starts else line)
    if gathered:
        yield Text(first, _plain("\n".join(gathered)))


def _outside_fences(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Line numbers and lines; empty ones where code, a rule or front matter is."""
    fence, is_list, was_empty = "", False, True
    front = lines.index("---", 1) if lines[:1] == ["---"] and "---" in lines[1:] else -1
    for number, line in enumerate(lines, start=1):
        mark = _FENCE.match(line)
        bare = line.lstrip("> ") if line.startswith(">") else line
        is_list = (is_list and (not line or line[0].isspace())) or _ITEM.match(line) is not None
        is_indented_code = was_empty and not is_list and line.startswith("    ")
        if fence or mark:
            fence = _fence_after(fence, mark)
            yield number, ""
        elif number <= front + 1 or is_indented_code or _RULE.match(bare) or _TARGET.match(bare):
            yield number, ""
        else:
            yield number, bare.rstrip()
        was_empty = not line.strip() or is_indented_code


def _fence_after(fence: str, mark: re.Match[str] | None) -> str:
    if not fence:
        return mark[1] if mark else ""
    return "" if mark and mark[1].startswith(fence) else fence


def _plain(text: str) -> str:
    """Links as their text, a span of code as one word between backticks; line ends stay."""
    return _LINK.sub(lambda match: match[1], _CODE_SPAN.sub(_as_one_word, text))


def _as_one_word(match: re.Match[str]) -> str:
    word = re.sub(r"\s+", "·", match[2].strip()).replace("|", "¦")
    return "\n" * match[2].count("\n") + f"`{word}`"


# Python


def python(source: str) -> Iterator[Text]:
    """Docstrings, and the strings that are prose."""
    tree = ast.parse(source)
    docstrings = list(_docstrings(tree))
    for docstring in docstrings:
        for text in _docstring(str(docstring.value), docstring.col_offset):
            yield Text(docstring.lineno + text.line - 1, text.text, text.kind)
    for line, string in _strings(tree, set(docstrings)):
        if _is_prose(string):
            yield Text(line, _plain(string), "string")


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            value = node.body[0].value if isinstance(node.body[0], ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def _docstring(docstring: str, indent: int) -> Iterator[Text]:
    """Its blocks: code, tables and trees, which are indented or aligned, are left out."""
    first, *rest = docstring.expandtabs().split("\n")
    lines = [first.lstrip(), *(line.removeprefix(" " * indent) for line in rest)]
    kept = ["" if re.search(r"\S {3,}\S|^ {4}|^[|`]-", line) else line for line in lines]
    return markdown("\n".join(kept))


def _strings(tree: ast.AST, skipped: Set[ast.AST]) -> Iterator[tuple[int, str]]:
    """String literals and f-strings; a value that an f-string inserts counts as one word."""
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    inner = skipped | {part for node in joined for part in ast.walk(node) if part is not node}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and node not in inner:
            yield node.lineno, "".join(_inserted(part) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inner:
            yield node.lineno, node.value


def _inserted(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "{value}"


def _is_prose(text: str) -> bool:
    words = text.split()
    if words.count("{") > 1:  # a prototxt
        return False
    plain = [word for word in words if re.fullmatch(r"[(\"'`]*[A-Za-z][a-z'-]*[.,:;?!)\"'`]*", word)]
    return len(words) >= FEWEST_PROSE_WORDS and len(plain) >= max(4, len(words) * 0.5)


# Rules

_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|cf|vs|al|Fig|Eq|Eqs|Sec|approx|etc|resp|Ch|pp|vol)\.|\.\.\.)$", re.I)
_END = re.compile(r"[.!?…][*_)\]\"'”’]*(?=\s|$)")
_SUBJECT = re.compile(r"^[*_(\[\"'“]*(?:who|what)(?:ever)?\b", re.I)
_CLAUSE = re.compile(r";\s+(?:and\s+|but\s+)?((?:who|what)(?:ever)?\b[^;]*)", re.I)
_WORD = re.compile(r"[^\W_]")
_CODE_WORD = re.compile(r"`[^`]*`")


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """The sentences of a block, each with the number of line ends before it."""
    start = 0
    for end in _END.finditer(text):
        head = text[start : end.end()]
        last = head.split()[-1]
        if (_ABBREVIATION.search(last) and text[end.end() :].strip()) or last.count("`") % 2:
            continue
        yield from _sentence(text, start, end.end())
        start = end.end()
    yield from _sentence(text, start, len(text))


def _sentence(text: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    body = text[start:end]
    if body.strip():
        lead = len(body) - len(body.lstrip())
        yield text.count("\n", 0, start + lead), body.strip()


def num_words(text: str) -> int:
    return sum(1 for word in text.split() if _WORD.search(word))


def check_text(text: Text, avoided: Iterable[Avoided]) -> Iterator[Finding]:
    """The rules that a block breaks."""
    if text.kind == "cell" and num_words(text.text) > MOST_CELL_WORDS:
        advice = f"{num_words(text.text)} words; a cell has at most {MOST_CELL_WORDS}: move the rest below the table"
        yield Finding(text.line, "cell", text.text, advice)
    for lines, sentence in sentences(text.text):
        for rule, advice in _broken(sentence, avoided):
            yield Finding(text.line + lines, rule, sentence, advice)


def _broken(sentence: str, avoided: Iterable[Avoided]) -> Iterator[tuple[str, str]]:
    """Rule and advice for each rule that the sentence breaks."""
    words, prose = num_words(sentence), _CODE_WORD.sub("`", sentence)
    if words > MOST_WORDS:
        yield "length", f"{words} words; a sentence has at most {MOST_WORDS}: divide it"
    if prose.count(";") > MOST_SEMICOLONS:
        yield "semicolons", "more than one semicolon: make it several sentences, or a list"
    is_question = sentence.rstrip("*_)\"'”’").endswith("?")
    clause = _CLAUSE.search(prose)
    if (_SUBJECT.match(sentence) and words > 1 and not is_question) or (clause and not clause[1].endswith("?")):
        yield "subject", "starts with who or what as its subject: name the thing that acts"
    for each in avoided:
        if word := each.found(prose):
            yield "word", f"{word!r}: write {each.instead}"


def check_page(source: str, avoided: Iterable[Avoided]) -> Iterator[Finding]:
    """The rules that a page in Markdown breaks."""
    texts = list(markdown(source))
    for text in texts:
        yield from check_text(text, avoided)
    lengths = [num_words(one) for text in texts if text.kind == "paragraph" for _, one in sentences(text.text)]
    if len(lengths) >= FEWEST_FOR_MEDIAN and statistics.median(lengths) > MOST_MEDIAN:
        median = f"{statistics.median(lengths):g}"
        yield Finding(1, "median", f"{median} words", f"a page's median sentence has at most {MOST_MEDIAN}: shorten")


def check_program(source: str, avoided: Iterable[Avoided]) -> Iterator[Finding]:
    """The rules that docstrings and sentences of a Python file break."""
    for text in python(source):
        yield from check_text(text, avoided)


# The list, the files


def avoided_words(style: Path) -> list[Avoided]:
    """The table of words in docs/style.md: forms in code spans, `~` for any ending."""
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|([^|]*)\|$", style.read_text(encoding="utf-8"), re.MULTILINE)
    return [
        Avoided(_any_of(words), instead.strip(), _any_of(fine) if "`" in fine else None)
        for words, instead, fine in rows
    ]


def _any_of(cell: str) -> re.Pattern[str]:
    forms = [re.escape(form).replace("\\~", r"\w*").replace("\\ ", r"\s+") for form in re.findall(r"`([^`]+)`", cell)]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(forms)})(?![\w-])", re.IGNORECASE)


def files(root: Path) -> list[Path]:
    """All files that are checked if no file is named."""
    found = {path for pattern in PAGES + SOURCES for path in root.glob(pattern)}
    return sorted(path for path in found if not SKIPPED_FOLDERS & set(path.relative_to(root).parts[:-1]))


def check(path: Path, avoided: list[Avoided]) -> list[Finding]:
    source = path.read_text(encoding="utf-8")
    page = path.suffix == ".md"
    try:
        return sorted(check_page(source, avoided) if page else check_program(source, avoided), key=lambda one: one.line)
    except SyntaxError as error:
        return [Finding(error.lineno or 1, "syntax", str(path), "is no Python")]


def _shown(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Check prose against docs/style.md.")
    parser.add_argument("files", nargs="*", type=Path, help="pages (.md) and programs (.py); default: all")
    parser.add_argument("--style", type=Path, default=STYLE, help="the page that holds the word list")
    chosen = parser.parse_args(arguments)
    avoided = avoided_words(chosen.style)
    paths = chosen.files or files(ROOT)
    found = [f"{_shown(path)}:{one}" for path in paths for one in check(path, avoided)]
    print("\n".join(found) if found else "prose: every sentence is good")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
