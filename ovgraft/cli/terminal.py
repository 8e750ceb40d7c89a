"""Blocks drawn with rich: colour, and tables that fit the terminal. Imported only when there is one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from ovgraft.inspection.layout import Block, Cell, Line, Symbols, Table, cell, printable, shortened

_STYLES = {
    "": "",
    "title": "bold",
    "heading": "bold cyan",
    "dim": "dim",
    "name": "",
    "prose": "",
    "aside": "dim",
    "good": "green",
    "bad": "bold red",
    "warn": "yellow",
}
_SHORTEST_NAME = 24
_TAIL = re.compile(r"(?: |\x1b\[[0-9;]*m)+$")  # padding of the last column, styled or not
_UNLIMITED = 100_000


class _Name:
    """A name that gives up its middle when the column is narrow."""

    def __init__(self, part: Cell, symbols: Symbols) -> None:
        self._text = printable(part.text)
        self._style = _STYLES[part.style]
        self._ellipsis = symbols.ellipsis

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shortened(self._text, options.max_width, self._ellipsis), style=self._style, no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(len(self._text), _SHORTEST_NAME), len(self._text))


def rich_console(stream: TextIO, *, colored: bool, terminal: bool) -> Console:
    """A console that takes no markup and, away from a terminal, cuts nothing."""
    return Console(
        file=stream,
        force_terminal=colored,
        no_color=not colored,
        color_system=("auto" if terminal else "standard") if colored else None,
        width=None if terminal else _UNLIMITED,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
    )


def draw(console: Console, blocks: Sequence[Block], symbols: Symbols) -> str:
    """The blocks as text with escape sequences."""
    available = console.width
    with console.capture() as capture:
        for block in blocks:
            if isinstance(block, Line):
                console.print(_line(block), soft_wrap=True)
                continue
            table = _table(block, symbols)
            # rather a line that the terminal wraps than a column that is cut off
            unlimited = console.options.update_width(_UNLIMITED)
            console.width = max(available, Measurement.get(console, unlimited, table).minimum)
            console.print(table, crop=False)
    return "".join(_TAIL.sub(_kept_reset, line) + "\n" for line in capture.get().splitlines())


def _kept_reset(tail: re.Match[str]) -> str:
    return "\x1b[0m" if "\x1b" in tail[0] else ""


def _line(line: Line) -> Text:
    return Text(" " * line.indent).append_text(Text().join(_text(cell(part)) for part in line.cells))


def _text(part: Cell) -> Text:
    return Text(printable(part.text), style=_STYLES[part.style])


def _table(table: Table, symbols: Symbols) -> Padding:
    columns = max([len(table.header), *(len(row) for row in table.rows)])
    drawn = RichTable(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(table.header), header_style="dim"
    )
    for at in range(columns):
        title = table.header[at] if at < len(table.header) else ""
        parts = [cell(row[at]) for row in table.rows if at < len(row)]
        wraps = any(part.style in ("prose", "aside") for part in parts)
        gives = wraps or any(part.style == "name" for part in parts)
        drawn.add_column(
            Text(title),
            justify="right" if table.align[at : at + 1] == ">" else "left",
            no_wrap=not gives,
            overflow="fold" if wraps else "ellipsis",
            # 1: an empty column takes one place, which rich forgets when it measures the table
            min_width=1 if gives else max(1, *(cell_len(text) for text in (title, *(part.text for part in parts)))),
        )
    for row in table.rows:
        drawn.add_row(*(_Name(part, symbols) if part.style == "name" else _text(part) for part in map(cell, row)))
    return Padding(drawn, (0, 0, 0, table.indent), expand=False)
