"""A mutated input, and the blind ways of damaging one."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Write = Callable[[Path], Path]

READ, REFUSED = "read", "refused"


@dataclass(frozen=True)
class Case:
    """One mutated input: `write` puts it into an empty folder and gives the path to read it by.

    `kind` names its reader. `expected` is what alone is right; empty, REFUSED and READ both are.
    """

    name: str
    kind: str
    write: Write
    expected: str = ""


def file_case(kind: str, name: str, file_name: str, content: bytes, expected: str = "") -> Case:
    """A single file with these bytes."""

    def write(folder: Path) -> Path:
        path = folder / file_name
        path.write_bytes(content)
        return path

    return Case(f"{kind}: {name}", kind, write, expected)


def damaged(content: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """`count` names and contents: cut off, with flipped bits, filled, doubled, shortened and swapped runs of bytes."""
    chance = random.Random(seed)
    ways = (_cut, _flip, _fill, _repeat, _remove, _insert, _huge_number, _swap)
    for index in range(count):
        way = ways[index % len(ways)]
        yield f"{way.__name__[1:]} {index}", bytes(way(bytearray(content), chance))


def _cut(content: bytearray, chance: random.Random) -> bytearray:
    return content[: chance.randrange(len(content))]


def _flip(content: bytearray, chance: random.Random) -> bytearray:
    for _ in range(chance.choice((1, 1, 4, 64))):
        content[_place(content, chance)] ^= 1 << chance.randrange(8)
    return content


def _fill(content: bytearray, chance: random.Random) -> bytearray:
    start, size = _place(content, chance), chance.choice((1, 4, 8, 64))
    content[start : start + size] = bytes([chance.choice((0x00, 0x7F, 0x80, 0xFF))]) * size
    return content


def _repeat(content: bytearray, chance: random.Random) -> bytearray:
    start, size = _place(content, chance), chance.choice((1, 10, 1000))
    return content[:start] + content[start : start + size] * chance.choice((2, 50)) + content[start:]


def _remove(content: bytearray, chance: random.Random) -> bytearray:
    start = _place(content, chance)
    del content[start : start + chance.choice((1, 2, 16, 500))]
    return content


def _insert(content: bytearray, chance: random.Random) -> bytearray:
    start = _place(content, chance)
    content[start:start] = chance.randbytes(chance.choice((1, 3, 200)))
    return content


def _huge_number(content: bytearray, chance: random.Random) -> bytearray:
    """The largest number as protobuf writes it, over what stands there."""
    start = _place(content, chance)
    content[start : start + 10] = b"\xff" * 9 + b"\x01"
    return content


def _swap(content: bytearray, chance: random.Random) -> bytearray:
    first, second, size = _place(content, chance), _place(content, chance), chance.choice((4, 40))
    one, other = content[first : first + size], content[second : second + size]
    content[first : first + len(other)], content[second : second + len(one)] = other, one
    return content


def _place(content: bytearray, chance: random.Random) -> int:
    """Half of them near the start, where headers are."""
    return chance.randrange(min(len(content), 300) if chance.random() < 0.5 else len(content))
