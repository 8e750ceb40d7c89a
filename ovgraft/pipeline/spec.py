"""Pipeline text: how it is read into names and values, and how a value is written.

.. code-block:: text

    pipeline = item (',' item)*
    item     = name ('{' option* '}')?
    option   = key '=' value                      options are separated by spaces
    value    = part (',' part)*                   inside braces commas belong to the value
    part     = bare word | JSON string

Example: ``annotate-hidden-states,expose-hidden-states{layers=1,3,4 layer-convention=output},move-fc``. Which types the
values have is the business of :mod:`ovgraft.pipeline.options`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NoReturn

from ovgraft.errors import SpecError

Span = tuple[int, int]

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[^\s,{}=\"']+")
_BARE = re.compile(r"[^\s,{}\"']+")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Part:
    """One word of a value.

    Attributes:
        text: The word, escapes resolved.
        quoted: Whether it stood in quotes; a quoted word is text even where a bare one would mean something else.
    """

    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Option:
    """``key=value`` of one item; ``span`` is the whole, ``value_span`` the value alone."""

    key: str
    parts: tuple[Part, ...]
    span: Span
    value_span: Span


@dataclass(frozen=True, slots=True)
class Item:
    """One pass of a pipeline text: its name and options as they were written."""

    name: str
    options: tuple[Option, ...]
    name_span: Span


def read_items(text: str) -> tuple[Item, ...]:
    """Read pipeline text without looking at what the names mean.

    Raises:
        SpecError: The text does not follow the grammar; the error points at the place.
    """
    return _Reader(text).items()


def write_value(parts: tuple[Part, ...]) -> str:
    """The text of a value, as :func:`read_items` reads it."""
    return ",".join(quote(part.text) if part.quoted else part.text for part in parts)


def is_bare(text: str) -> bool:
    """Whether a word can be written without quotes."""
    return _BARE.fullmatch(text) is not None


def quote(text: str) -> str:
    """A word in double quotes, with the escapes of JSON (they are those of TOML as well)."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class _Reader:
    """A cursor over one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def items(self) -> tuple[Item, ...]:
        items = [self._item()]
        while self._take(","):
            items.append(self._item())
        if self.at < len(self.text):
            self._unexpected("',' or the end of the pipeline")
        return tuple(items)

    def _item(self) -> Item:
        name, span = self._word("the name of a pass")
        options: list[Option] = []
        if self._take("{"):
            opened = self.at - 1
            while not self._take("}"):
                if self.at == len(self.text):
                    self._fail("'{' is never closed", (opened, opened + 1))
                options.append(self._option())
        for position, option in enumerate(options):
            if any(option.key == earlier.key for earlier in options[:position]):
                self._fail(f"option '{option.key}' of '{name}' is given twice", option.span)
        return Item(name, tuple(options), span)

    def _option(self) -> Option:
        if self.text[self.at] == ",":
            self._fail("unexpected ',' between options", (self.at, self.at + 1), "options are separated by spaces")
        key, (start, _) = self._word("an option, key=value")
        if not self._take("="):
            self._fail(f"option '{key}' has no value", (start, self.at), f"write {key}=VALUE")
        self._skip_space()
        begin = self.at
        parts = [self._part(key)]
        while self.text.startswith(",", self.at):
            self.at += 1
            parts.append(self._part(key))
        end = self.at
        if end < len(self.text) and self.text[end] != "}" and not self.text[end].isspace():
            self._unexpected("a space or '}' after the value")
        return Option(key, tuple(parts), (start, end), (begin, end))

    def _part(self, key: str) -> Part:
        if self.text.startswith('"', self.at):
            match = _STRING.match(self.text, self.at)
            if match is None:
                self._fail("the string is never closed", (self.at, self.at + 1))
            self.at = match.end()
            try:
                return Part(json.loads(match.group()), quoted=True)
            except json.JSONDecodeError as error:
                position = match.start() + error.pos
                message = "the string has an escape or a character it may not have"
                self._fail(message, (position, position + 1), 'strings are written as in JSON: "a \\"b\\" \\u00e9"')
        match = _BARE.match(self.text, self.at)
        if match is None:
            hint = f'text with spaces, quotes or braces goes in double quotes; {key}="" is the empty text'
            where = "the end" if self.at == len(self.text) else repr(self.text[self.at])
            self._fail(f"option '{key}' expects a value before {where}", (self.at, self.at + 1), hint)
        self.at = match.end()
        return Part(match.group(), quoted=False)

    def _word(self, what: str) -> tuple[str, Span]:
        self._skip_space()
        match = _WORD.match(self.text, self.at)
        if match is None:
            self._unexpected(what)
        self.at = match.end()
        return match.group(), match.span()

    def _take(self, symbol: str) -> bool:
        self._skip_space()
        if not self.text.startswith(symbol, self.at):
            return False
        self.at += 1
        return True

    def _skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = self.at if match is None else match.end()

    def _unexpected(self, expected: str) -> NoReturn:
        if self.at == len(self.text):
            self._fail(f"the pipeline text ends where {expected} was expected", (self.at, self.at + 1))
        symbol = self.text[self.at]
        hint = None
        if symbol == "=":
            hint = "options go in braces, name{key=value}; quote the text, a shell takes braces apart"
        self._fail(f"unexpected {symbol!r}, expected {expected}", (self.at, self.at + 1), hint)

    def _fail(self, message: str, span: Span, hint: str | None = None) -> NoReturn:
        raise SpecError(message, text=self.text, span=span, hint=hint)
