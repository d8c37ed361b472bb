"""Processes of a command that stand still where they import a module, until a test lets them go on."""

from pathlib import Path
from string import Template

# What Python imports before anything else, where PYTHONPATH leads to it.
_SITE = Template("""
import os, sys, time

class Hold:
    def find_spec(self, name, path=None, target=None):
        if name == "$module":
            sys.meta_path.remove(self)
            open("$folder/reached", "w").close()
            while not os.path.exists("$folder/let go"):
                time.sleep(0.005)

if "$word" in sys.orig_argv:
    sys.meta_path.insert(0, Hold())
""")


class HeldImport:
    """Holds where `module` is looked for, in processes with `word` on their command line; of one test, in its folder.

    `prefix` are the words that a command is started with.
    """

    def __init__(self, folder: Path, module: str, word: str) -> None:
        self._folder = folder / "held import"
        self._folder.mkdir()
        text = _SITE.substitute(module=module, word=word, folder=self._folder)
        (self._folder / "sitecustomize.py").write_text(text)
        self.prefix = ("env", f"PYTHONPATH={self._folder}")

    @property
    def is_reached(self) -> bool:
        return (self._folder / "reached").exists()

    def let_go(self) -> None:
        (self._folder / "let go").touch()
