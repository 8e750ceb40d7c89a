"""Text for people as data: lines and tables of cells, and their plain form.

A renderer builds blocks and never prints. Names out of a model are untrusted, so every cell is made printable where it
is drawn, here and in the console, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Style = Literal["", "title", "heading", "dim", "name", "prose", "aside", "good", "bad", "warn"]
"""What a cell means. On a narrow terminal a name in a table gives up its middle, prose and asides are wrapped."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of text with one meaning.

    Attributes:
        text: Untrusted text.
        style: A console may colour it; the words alone must do.
    """

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Cells on one line, joined without a space."""

    cells: tuple[Cell | str, ...] = ()
    indent: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Aligned columns, two spaces apart.

    Attributes:
        rows: Cells by row; rows may be shorter than the widest one.
        header: Column titles, or nothing.
        align: One of ``<`` and ``>`` per column; missing ones are ``<``.
        indent: Spaces before each row.
        footer: The last row is a total.
    """

    rows: Sequence[Sequence[Cell | str]]
    header: Sequence[str] = ()
    align: str = ""
    indent: int = 2
    footer: bool = False


Block = Line | Table


class Symbols(NamedTuple):
    """The few characters beyond ASCII that we write ourselves."""

    arrow: str
    times: str
    dot: str
    ellipsis: str


UNICODE = Symbols("→", "×", "·", "…")
ASCII = Symbols("->", "x", "-", "...")


def cell(part: Cell | str) -> Cell:
    """The part as a cell."""
    return part if isinstance(part, Cell) else Cell(part)


def printable(text: str) -> str:
    r"""Untrusted text on one line: control, invisible and direction-changing characters as ``\xNN`` or ``\uNNNN``."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii") for char in text
    )


def shortened(text: str, width: int, ellipsis: str = "…") -> str:
    """The text with its middle taken out when longer than ``width``: both ends of a node name tell something."""
    if len(text) <= width:
        return text
    room = max(0, width - len(ellipsis))
    tail = room - room // 2
    return text[: room // 2] + ellipsis + text[len(text) - tail :]


def plain(blocks: Iterable[Block]) -> str:
    """Blocks as text at full width, for streams that are not a terminal."""
    return "".join(f"{line}\n" for block in blocks for line in _plain_lines(block))


def _plain_lines(block: Block) -> list[str]:
    if isinstance(block, Line):
        return [(" " * block.indent + "".join(printable(cell(part).text) for part in block.cells)).rstrip()]
    rows = [[printable(cell(part).text) for part in row] for row in block.rows]
    if block.header:
        rows.insert(0, list(block.header))
    columns = max((len(row) for row in rows), default=0)
    widths = [max((len(row[at]) for row in rows if at < len(row)), default=0) for at in range(columns)]
    right = [block.align[at : at + 1] == ">" for at in range(columns)]
    lines = []
    for row in rows:
        texts = [text.rjust(widths[at]) if right[at] else text.ljust(widths[at]) for at, text in enumerate(row)]
        lines.append((" " * block.indent + "  ".join(texts)).rstrip())
    return lines
