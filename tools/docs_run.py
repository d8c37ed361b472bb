"""Run what documents show, and compare what comes out with what they show.

    python tools/docs_run.py [--write] [--quick] [--data-sets DIR] [PAGE ...]

Each page gets a fresh folder, with a link to `examples/`. Its blocks are run in order, in one shell:

    ```console   lines `$ command`, each with its output below it. Output that is not shown is not compared.
                 `...` leaves out lines, or words where it is in a line. Digits, times, sizes, hashes, bars and
                 paths may differ.
    ```sh        commands alone.
    ```python    all blocks of the page are one script, which is run where the last of them is.

All others are not run. Comments right above a block change this:

    <!-- file: NAME -->        the block is the content of this file
    <!-- not run: REASON -->   no test can run it
    <!-- slow -->              only with the slow tests; mark later blocks that need it too
    <!-- needs: NAME, ... -->  programs, data sets (mnist, fashion-mnist, cifar-10), root; else it is left out
    <!-- exit: CODE -->        how its last command ends, if not with 0
    <!-- output -->            a text block: what the Python block before it prints
    <!-- background: NAME -->  its command goes on; the next block is run when its output has come
    <!-- goes on: NAME -->     what that command prints until it ends; a first line `^C` interrupts it
    <!-- one process -->       the page's script is not run on two workers as well

`<!-- hidden console: ... -->` and `<!-- hidden python: ... -->` hold a block that readers do not see.
`--write` puts real output where other output or none is shown. `--quick` leaves out what is slow.
Exits with 1 where something differs.
"""

import argparse
import difflib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from docs_blocks import Block, agree, blocks, documents, masked, steps
from docs_shell import Ended, Shell

ROOT = Path(__file__).resolve().parent.parent
DATA_SETS = ("mnist", "fashion-mnist", "cifar-10")
_SEPARATOR = "---- the next block ----"


class Page:
    """A page, what is wrong with it, and what `--write` would change in it."""

    def __init__(self, path: Path, *, quick: bool = False, data_sets: Path | None = None) -> None:
        self.path = path
        self._text = path.read_text(encoding="utf-8")
        self._data_sets = data_sets
        self._is_quick = quick
        self._edits: list[tuple[Block, str]] = []
        self.left_out: list[str] = []
        self._blocks = [block for block in blocks(self._text) if block.is_run]

    def run(self, limit_s: float = 1500.0) -> list[str]:
        """A sentence for all that differs. Nothing that the page starts is left."""
        root = next(folder for folder in self.path.resolve().parents if (folder / "pyproject.toml").exists())
        with tempfile.TemporaryDirectory(prefix="samovar-docs-") as place:
            shell = Shell(root, Path(place), limit_s)
            try:
                return [f"{self.path.name}:{line}: {sentence}" for line, sentence in self._run(shell)]
            finally:
                shell.close()

    def mended(self) -> str:
        """The page with what was really printed."""
        text = self._text
        for block, body in reversed(self._edits):
            indented = "".join(f"{block.indent}{line}".rstrip() + "\n" for line in body.splitlines())
            text = text[: block.start] + indented + text[block.end :]
        return text

    def _run(self, shell: Shell) -> Iterator[tuple[int, str]]:
        chosen = [block for block in self._blocks if self._is_wanted(block, shell)]
        script = [block for block in chosen if block.is_of_script]
        for block in chosen:
            found: Iterator[str] = iter(())
            if "file" in block.notes:
                target = shell.folder / block.notes["file"]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.body, encoding="utf-8")
            elif "background" in block.notes or "goes on" in block.notes:
                found = self._in_background(shell, block)
            elif block.is_of_script:
                found = self._script(shell, script) if block is script[-1] else found
            else:
                found = self._commands(shell, block)
            yield from ((block.line, sentence) for sentence in found)

    def _is_wanted(self, block: Block, shell: Shell) -> bool:
        if self._is_quick and "slow" in block.notes:
            return False
        for name in filter(None, block.notes.get("needs", "").split(", ")):
            if name in DATA_SETS and self._data_sets and (self._data_sets / name).is_dir():
                if not (shell.folder / name).exists():
                    (shell.folder / name).symlink_to(self._data_sets / name)
            elif name == "root" and os.geteuid() == 0:
                continue
            elif name in DATA_SETS or not shutil.which(name, path=shell.environment["PATH"]):
                self.left_out.append(f"{self.path.name}:{block.line}: left out, for there is no {name}")
                return False
        return True

    def _commands(self, shell: Shell, block: Block) -> Iterator[str]:
        found, body = steps(block), []
        for step in found:
            ended = shell.run(step.command)
            wanted = int(block.notes.get("exit", 0)) if step is found[-1] else 0
            yield from wrong(step.command, step.shown, ended, wanted)
            keeps = bool(step.shown) and agree(step.shown, ended.lines)
            body += [f"$ {step.command}", *(step.shown if keeps else ended.lines)]
        if block.language == "console" and "hidden" not in block.notes:
            self._edit(block, "\n".join(body))

    def _edit(self, block: Block, body: str) -> None:
        if body.split() != block.body.split():
            self._edits.append((block, body))

    def _in_background(self, shell: Shell, block: Block) -> Iterator[str]:
        step = steps(block)[0]
        name, wanted = block.notes.get("background", ""), int(block.notes.get("exit", 0))
        if "background" in block.notes:
            ended, first = shell.begin(name, step), f"$ {step.command}"
        else:
            ended, first = shell.rest(block.notes["goes on"], step), step.command
        yield from wrong(first or "the rest", step.shown, ended, wanted, whole="background" not in block.notes)
        if not agree(step.shown, ended.lines, whole="background" not in block.notes):
            self._edit(block, "\n".join([first, *ended.lines]).strip())

    def _script(self, shell: Shell, script: Sequence[Block]) -> Iterator[str]:
        """All Python blocks of the page: in one process, then on two workers in a copy of the folder."""
        parts = [block.body for block in script if block.language == "python"]
        (shell.folder / "page.py").write_text(f'\nprint("{_SEPARATOR}", flush=True)\n'.join(parts), encoding="utf-8")
        ended = shell.run(f"(cd '{shell.folder}' && python -W error page.py)")
        yield from wrong("the Python of this page", [], ended, 0)
        printed = [part.splitlines() for part in "\n".join(ended.lines).split(_SEPARATOR)]
        place = -1
        for block in script:
            place += block.language == "python"
            lines = printed[place] if place < len(printed) else []
            if "output" in block.notes and not agree(block.body.splitlines(), lines):
                yield f"output of line {block.line}: {difference(block.body.splitlines(), lines)}"
                self._edit(block, "\n".join(lines).strip())
        if not self._is_quick and not any("one process" in block.notes for block in script):
            ended = shell.run(f"(cd '{shell.folder}' && cp -a . ../copy && cd ../copy && samovar run -n 2 page.py)")
            yield from wrong("the Python of this page by `samovar run -n 2`", [], ended, 0)


def wrong(command: str, shown: Sequence[str], ended: Ended, wanted: int, *, whole: bool = True) -> Iterator[str]:
    if ended.code is None:
        yield f"{command}: had not ended in time; it printed:\n{indented(ended.lines)}"
    elif ended.code != wanted:
        yield f"{command}: ended with {ended.code}, not {wanted}:\n{indented(ended.lines)}"
    elif shown and not agree(shown, ended.lines, whole=whole):
        yield f"{command}: {difference(shown, ended.lines)}"


def difference(shown: Sequence[str], printed: Sequence[str]) -> str:
    """Lines that differ, as they are compared."""
    before, after = ([line for line in map(masked, lines) if line] for lines in (shown, printed))
    lines = [line for line in difflib.ndiff(before, after) if line[0] in "-+"]
    return f"shown (-) and printed (+) differ:\n{indented(lines)}"


def indented(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: all documents")
    parser.add_argument("--write", action="store_true", help="put real output into the pages")
    parser.add_argument("--quick", action="store_true", help="leave out what is marked slow")
    parser.add_argument("--data-sets", type=Path, metavar="DIR", help="folder of mnist/, fashion-mnist/, cifar-10/")
    given = parser.parse_args(arguments)
    num_wrong = 0
    for path in given.pages or documents(ROOT):
        page = Page(path, quick=given.quick, data_sets=given.data_sets and given.data_sets.resolve())
        sentences = page.run()
        num_wrong += len(sentences)
        for sentence in [*page.left_out, *sentences]:
            print(sentence, flush=True)
        if given.write:
            path.write_text(page.mended(), encoding="utf-8")
    print(f"{num_wrong} wrong" if num_wrong else "the pages are right")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
