"""Sphinx builds the site from this: `make site`. The pages are those that GitHub shows."""

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import python_names  # noqa: E402

project = "Samovar"
author = "the authors of Samovar"
project_copyright = "the authors of Samovar. BSD-3-Clause"
version = release = importlib.import_module("samovar").__version__

# The sources are the whole repository, so that links between pages are those of the repository.
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "examples/zoo/README.md"]
exclude_patterns = ["docs/questions.md"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # the sections of CHANGELOG.md repeat

default_role = "code"  # docstrings write code as Markdown does
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
python_maximum_signature_line_length = 88
add_module_names = False

smartquotes = False  # "--flag" is no dash

html_theme = "furo"
html_title = f"Samovar {version}"
html_static_path = ["_static"]
html_css_files = ["samovar.css"]
html_js_files = ["samovar.js"]
html_favicon = "_static/samovar.svg"
templates_path = ["_templates"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "footer_icons": []}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def add_navigation(_app: Sphinx, name: str, source: list[str]) -> None:
    """Show the links of an index page's lists below it in the sidebar."""
    if name.endswith("/index"):
        found = re.findall(r"^- \[([^\]]+)\]\(([^)#]+)\.md\)", source[0], re.MULTILINE)
        entries = "\n".join(f"{title.replace('`', '')} <{page}>" for title, page in found)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"


def add_details(_app: Sphinx, name: str, source: list[str]) -> None:
    """Add signatures and docstrings for the names that the page lists."""
    if name == "docs/reference/python":
        blocks = [f"```{{eval-rst}}\n{_directive(listed)}\n```\n" for listed in python_names.listed(source[0])]
        source[0] += "\n".join(["\n\n## In full\n", *blocks])


def _directive(name: str) -> str:
    if isinstance(python_names.found(name), type):
        return f".. autoclass:: {name}\n   :members:\n   :undoc-members:"
    return f".. autofunction:: {name}"


def mark_code(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """An indented part after a colon is code, as in Markdown."""
    for place, (line, after) in enumerate(zip(lines, lines[2:], strict=False)):
        if line.endswith(":") and not line.endswith("::") and not lines[place + 1] and after.startswith("    "):
            lines[place] = f"{line}:"


def leave_out(_app: Sphinx, _what: str, name: str, one: object, skips: bool, _options: object) -> bool | None:
    """Leave out methods without a docstring, and two that only `Replica.shard` calls."""
    is_bare = inspect.isroutine(one) and not one.__doc__
    return True if skips or is_bare or name in ("shadow", "even_out") else None


def short_signature(
    _app: Sphinx, _what: str, _name: str, one: object, _options: object, signature: str | None, _returns: str | None
) -> tuple[str, str] | None:
    """Show no constructor: the fields of a class are listed below it, and functions make most of its objects."""
    return ("", "") if signature and isinstance(one, type) else None


_SIGNATURE = re.compile(r'(<dt class="sig .*?)</dt>', re.DOTALL)
_WORD = re.compile(r'<span class="pre">(?=[^<]{1,24}</span>)')
_NO_HEADER = re.compile(r'<th class="head[^"]*">(?:<p></p>)?</th>')


def make_accessible(_app: Sphinx, _name: str, _template: str, context: dict[str, Any], _tree: object) -> None:
    """Make scrolling parts reachable by keyboard, and repair empty headers and lists of parameters."""
    body = context.get("body", "").replace("<pre>", '<pre tabindex="0">')
    body = body.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
    body = _WORD.sub('<span class="pre word">', body)
    body = _NO_HEADER.sub("<td></td>", body)
    context["body"] = _SIGNATURE.sub(lambda found: f"{_lines(found[1])}</dt>", body)


def _lines(signature: str) -> str:
    for tag, name in (("dl", "sig-lines"), ("dd", "sig-line")):
        signature = signature.replace(f"<{tag}>", f'<span class="{name}">').replace(f"</{tag}>", "</span>")
    return signature


_START = """<!doctype html>
<html lang="en">
<title>Samovar</title>
<link rel="icon" href="_static/samovar.svg">
<meta http-equiv="refresh" content="0; url=docs/index.html">
<a href="docs/index.html">Samovar</a>
</html>
"""


def write_start(app: Sphinx, error: Exception | None) -> None:
    """The site's own address leads to its first page."""
    if error is None:
        (Path(app.outdir) / "index.html").write_text(_START, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("source-read", add_details)
    app.connect("autodoc-process-docstring", mark_code)
    app.connect("autodoc-skip-member", leave_out)
    app.connect("autodoc-process-signature", short_signature)
    app.connect("html-page-context", make_accessible)
    app.connect("build-finished", write_start)
