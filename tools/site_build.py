"""Build the documentation site into build/site, and check what was built.

    python tools/site_build.py [--out FOLDER]

A warning of Sphinx fails the build. So does a link or an anchor that leads nowhere, and a resource of another site.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ROOT / "build" / "site"
_LOADED = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//[^"')\s]+""")
_LOADING = {
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("link", "href"),
    ("object", "data"),
}


class _Page(HTMLParser):
    """The anchors of a page, and where it leads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors = {"", "top"}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif (tag, name) in _LOADING and value:
                self.loaded.append(value)
            if name in ("href", "src") and value and tag in ("a", "img", "script", "link"):
                self.links.append(value)


def problems(site: Path) -> list[str]:
    """A sentence for each link that leads nowhere, and for each resource that another site would be asked for."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [
        f"{path.relative_to(site)}: {sentence}"
        for path, page in pages.items()
        for sentence in _wrong(path, page, pages)
    ]
    for path in sorted(site.rglob("*.css")):
        found += [f"{path.relative_to(site)}: loads {one}" for one in _LOADED.findall(path.read_text(encoding="utf-8"))]
    return found


def _wrong(path: Path, page: _Page, pages: dict[Path, _Page]) -> Iterator[str]:
    yield from (f"loads {one}" for one in page.loaded if urlsplit(one).netloc)
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not target.is_file():
            yield f"no such page: {link}"
        elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
            yield f"no such anchor: {link}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT, metavar="FOLDER")
    out = parser.parse_args(arguments).out.resolve()
    if (out / ".buildinfo").exists():  # an older site, which may have pages that are gone
        shutil.rmtree(out)
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--quiet",
        "--fail-on-warning",
        "-b",
        "html",
        "-c",
        "docs",
        ".",
        str(out),
    ]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    found = problems(out) if code == 0 else []
    print("\n".join(found) if found or code else f"the site is in {out}")
    return 1 if found or code else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
