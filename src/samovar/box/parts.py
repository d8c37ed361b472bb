"""How a center is cut over several boxes: contiguous parts, one to a box, and what each part's board says of that."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from samovar.box.board import Rows
from samovar.box.buffers import BufferShape
from samovar.core.errors import InputError

# Of the words that all members share.
PART_WORDS: Final = (12, 13)
_SET_WORD, _PLACE_WORD = PART_WORDS
_COUNT_SHIFT: Final = 32
_LINE_ELEMENTS: Final = 16  # 64 bytes


@dataclass(frozen=True, slots=True)
class Part:
    """Part `index` of `count`, from 0 on; `set_number` is common to the parts of one center, and to no other's."""

    index: int
    count: int
    set_number: int

    def __str__(self) -> str:
        return f"part {self.index + 1} of {self.count}"

    @classmethod
    def on(cls, board: Rows) -> "Part | None":
        """What the board says; None where the buffer is a whole center, or has not been said to be a part yet."""
        place = board.word(_PLACE_WORD)
        return cls._of(place, board.word(_SET_WORD))

    @classmethod
    def among(cls, words: Sequence[int]) -> "Part | None":
        """The same of a copy of the board's words."""
        return cls._of(int(words[_PLACE_WORD]), int(words[_SET_WORD]))

    @classmethod
    def _of(cls, place: int, set_number: int) -> "Part | None":
        if place == 0:
            return None
        return cls((place & (2**_COUNT_SHIFT - 1)) - 1, place >> _COUNT_SHIFT, set_number)

    def say(self, board: Rows) -> int:
        """Write it on a new part's board; the number of its set, which an earlier try may have said already."""
        set_number = board.claim_word(_SET_WORD, self.set_number)
        board.claim_word(_PLACE_WORD, self.count << _COUNT_SHIFT | self.index + 1)
        return set_number


def cut(whole: BufferShape, num_parts: int) -> list[BufferShape]:
    """The parts of a center of N elements, in their order; a pure function, the same for all who train there.

    Each of K parts has q = ceil(N / (K C)) chunks, C being the most elements of a chunk (`whole.chunk_elements`), and
    each chunk ceil(N / (K q)) elements, in whole lines of 64 bytes where every part still gets some; what is missing
    is missing in the last part. So parts differ by less than 16 q elements, or K q where N is small. Raises InputError
    where a part would be empty.
    """
    if num_parts == 1:
        return [whole]
    size = whole.num_elements
    num_chunks = -(-size // (num_parts * whole.chunk_elements))
    chunk = -(-size // (num_parts * num_chunks))
    in_lines = min(-(-chunk // _LINE_ELEMENTS) * _LINE_ELEMENTS, whole.chunk_elements)
    if in_lines * num_chunks * (num_parts - 1) < size:
        chunk = in_lines
    step = chunk * num_chunks
    if step * (num_parts - 1) >= size:
        raise InputError(f"{size:,} elements cannot be cut over {num_parts} boxes; give fewer boxes")
    starts = range(0, step * num_parts, step)
    return [replace(whole, num_elements=min(step, size - start), chunk_elements=chunk) for start in starts]


def whole_of(parts: Sequence[BufferShape]) -> BufferShape:
    """The center that these are parts of; `chunk_elements` are those of a part."""
    return replace(parts[0], num_elements=sum(part.num_elements for part in parts))
