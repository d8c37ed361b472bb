"""Small SVG files: shapes and text, readable on a light and on a dark page, the same bytes from the same input."""

from collections.abc import Sequence
from html import escape

# Every picture brings its own ground, so that its text can be read whatever the page around it looks like.
_STYLE = """
.ground{fill:#fff;stroke:#d0d7de}.text{fill:#1f2328}.soft{fill:#57606a}.rule{stroke:#afb8c1}
.a{fill:#2f6fbf}.b{fill:#bf6a12}.c{fill:#6e7781}.d{fill:#1a7f4e}.e{fill:#a63d8f}.f{fill:#c2342c}
.la{stroke:#2f6fbf}.lb{stroke:#bf6a12}.lc{stroke:#6e7781}.ld{stroke:#1a7f4e}.le{stroke:#a63d8f}.lf{stroke:#c2342c}
.box{fill:#eaf1fb;stroke:#2f6fbf}.row{fill:#f6f8fa;stroke:#d0d7de}
@media(prefers-color-scheme:dark){
.ground{fill:#161b22;stroke:#30363d}.text{fill:#e6edf3}.soft{fill:#a7b1bb}.rule{stroke:#6e7681}
.a{fill:#5a9bed}.b{fill:#e39a45}.c{fill:#8b949e}.d{fill:#4fb883}.e{fill:#d97fc6}.f{fill:#f0776d}
.la{stroke:#5a9bed}.lb{stroke:#e39a45}.lc{stroke:#8b949e}.ld{stroke:#4fb883}.le{stroke:#d97fc6}.lf{stroke:#f0776d}
.box{fill:#1c2c44;stroke:#5a9bed}.row{fill:#1c2128;stroke:#30363d}}
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
"""


def number(value: float) -> str:
    """At most one decimal, and no minus before zero."""
    return f"{value + 0.0:.1f}".removesuffix(".0")


class Picture:
    """A drawing of `width` x `height` user units; `title` and `description` are for those who cannot see it."""

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        self._width, self._height = width, height
        self._title, self._description = title, description
        self._parts: list[str] = []

    def rectangle(self, place: tuple[float, float, float, float], style: str, radius: float = 0.0) -> None:
        """`place` is left, top, width, height."""
        left, top, width, height = (number(value) for value in place)
        rounded = f' rx="{number(radius)}"' if radius else ""
        self._parts.append(f'<rect class="{style}" x="{left}" y="{top}" width="{width}" height="{height}"{rounded}/>')

    def rectangles(self, places: Sequence[tuple[float, float, float, float]], style: str) -> None:
        """Many of one style, as one path."""
        if places:
            drawn = "".join(
                f"M{number(left)} {number(top)}h{number(width)}v{number(height)}h{number(-width)}z"
                for left, top, width, height in places
            )
            self._parts.append(f'<path class="{style}" d="{drawn}"/>')

    def line(self, points: Sequence[tuple[float, float]], style: str, width: float = 1.0, dash: str = "") -> None:
        drawn = "L".join(f"{number(x)} {number(y)}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(f'<path class="{style}" fill="none" stroke-width="{number(width)}"{dashed} d="M{drawn}"/>')

    def dots(self, points: Sequence[tuple[float, float]], style: str, radius: float = 3.0) -> None:
        for x, y in points:
            self._parts.append(f'<circle class="{style}" cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"/>')

    def text(
        self, x: float, y: float, words: str, style: str = "text", *, size: float = 14, anchor: str = "start"
    ) -> None:
        """`y` is the line on which the letters stand."""
        where = f'x="{number(x)}" y="{number(y)}" font-size="{number(size)}"'
        side = "" if anchor == "start" else f' text-anchor="{anchor}"'
        bold = ' font-weight="600"' if style == "text bold" else ""
        self._parts.append(f'<text class="{style.split(maxsplit=1)[0]}" {where}{side}{bold}>{escape(words)}</text>')

    def written(self) -> str:
        """The file."""
        width, height = number(self._width), number(self._height)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-labelledby="t d">\n<title id="t">{escape(self._title)}</title>\n'
            f'<desc id="d">{escape(self._description)}</desc>\n<style>{_STYLE}</style>\n'
        )
        ground = f'<rect class="ground" x="0.5" y="0.5" width="{number(self._width - 1)}" '
        ground += f'height="{number(self._height - 1)}" rx="8"/>\n'
        return head + ground + "\n".join(self._parts) + "\n</svg>\n"
