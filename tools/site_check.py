"""Open every page of the built site in a browser, wide and narrow, light and dark, and check what it shows.

    python tools/site_check.py [--site FOLDER] [--out FOLDER] [WORD ...]

Fails for an error in the console, a page that is wider than the window, a violation that axe-core finds, a request to
another address, and a search without result. Screenshots are in build/site-check. With words, only pages are opened
whose path holds one of them. Needs node, npm and chromium. The first run installs
playwright-core and axe-core in the folder of the screenshots.
"""

import argparse
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("playwright-core@1.65.1", "axe-core@4.14.1")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SEARCHED = "elastic"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The site at an address of this host."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


def missing(site: Path) -> str | None:
    """A sentence about missing programs, or None."""
    lacks = [name for name in ("node", "npm") if not shutil.which(name)]
    if not any(map(shutil.which, BROWSERS)):
        lacks.append("chromium")
    if lacks:
        return f"site_check needs {' and '.join(lacks)}: on Debian, `apt-get install nodejs npm chromium` installs them"
    if not (site / "docs/index.html").is_file():
        return f"there is no site in {site}: make site builds it"
    return None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--site", type=Path, default=ROOT / "build/site", metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=ROOT / "build/site-check", metavar="FOLDER")
    given = parser.parse_args(arguments)
    if sentence := missing(given.site):
        print(sentence, file=sys.stderr)
        return 2
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    install = [
        "npm",
        "install",
        "--prefix",
        str(given.out),
        "--no-save",
        "--no-audit",
        "--no-fund",
        "--silent",
        *PACKAGES,
    ]
    subprocess.run(install, check=True)
    pages = [str(path.relative_to(given.site)) for path in sorted(given.site.rglob("*.html"))]
    chosen = [page for page in pages if not given.words or any(word in page for word in given.words)]
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    with served(given.site) as address:
        program = ["node", str(ROOT / "tools/site_check.mjs"), str(given.out), browser, address, SEARCHED, *chosen]
        return subprocess.run(program, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
