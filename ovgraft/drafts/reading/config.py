"""config.json of a draft: one value per fact wherever it may stand, checked, with a record of where it stood."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ovgraft.drafts.spec import Source
from ovgraft.errors import CheckpointError

T = TypeVar("T")
D = TypeVar("D")

LARGEST = 2**31 - 1
"""No size, id or count of a draft is larger."""

Parser = Callable[[Any], T]
"""Returns the typed value, or raises ValueError with what was expected."""


class Config:
    """Values of a config with their sources.

    A fact may stand at the top, inside a nested object, or in both; both must then agree. ``null`` counts as absent.

    Args:
        file: The config file.
        data: Its content.
        sections: Names of nested objects that hold facts too, searched before the top.

    Attributes:
        file: The config file.
        data: Its content.
        sources: Spec field -> where its value came from; filled by reading.
    """

    def __init__(self, file: Path, data: dict[str, Any], sections: Sequence[str] = ()) -> None:
        self.file = file
        self.data = data
        self.sources: dict[str, Source] = {}
        self._places: list[tuple[str, dict[str, Any]]] = []
        for section in sections:
            nested = data.get(section)
            if nested is not None and not isinstance(nested, dict):
                raise CheckpointError(f"{section} is not an object", key=section, file=file, found=_short(nested))
            self._places.append((f"{section}.", nested or {}))
        self._places.append(("", data))

    def find(self, *names: str) -> tuple[str, Any] | None:
        """``(key, value)`` of the first of ``names`` that has a value, after all that have one were compared.

        Raises:
            CheckpointError: Two places disagree.
        """
        found = [
            (prefix + name, values[name])
            for name in names
            for prefix, values in self._places
            if values.get(name) is not None
        ]
        for key, value in found[1:]:
            # bool is an int to ==, and 8 is 8.0; a config that mixes them is still wrong.
            if value != found[0][1] or isinstance(value, bool) is not isinstance(found[0][1], bool):
                raise CheckpointError(
                    f"{found[0][0]} and {key} contradict each other",
                    key=key,
                    file=self.file,
                    expected=f"{found[0][0]} = {_short(found[0][1])}",
                    found=_short(value),
                )
        return found[0] if found else None

    def read(self, field: str, parse: Parser[T], *names: str, note: str = "") -> T:
        """A fact that must be there.

        Args:
            field: Name in the spec, and in ``sources``.
            parse: Checks the value.
            names: Keys that hold it; the last part of ``field`` when none is given.
            note: What the source record adds.

        Raises:
            CheckpointError: It is missing, of another type, out of range, or contradicted.
        """
        keys = names or (field.rpartition(".")[2],)
        found = self.find(*keys)
        if found is None:
            self.missing(*keys)
        return self._parsed(field, parse, found, note)

    def read_or(self, field: str, parse: Parser[T], default: D, *names: str, note: str) -> T | D:
        """A fact with a default.

        Args:
            field: Name in the spec, and in ``sources``.
            parse: Checks the value.
            default: What holds without the key.
            names: Keys that hold it; the last part of ``field`` when none is given.
            note: Whose default it is, for the source record.
        """
        keys = names or (field.rpartition(".")[2],)
        found = self.find(*keys)
        if found is None:
            self.sources[field] = Source("", "", note)
            return default
        return self._parsed(field, parse, found, "")

    def record(self, field: str, file: str, key: str, note: str = "") -> None:
        """Say where a value came from that is no single key."""
        self.sources[field] = Source(file, key, note)

    def key_of(self, *names: str) -> str:
        """The key that holds a fact, for messages; the first of ``names`` when none does."""
        found = self.find(*names)
        return found[0] if found else names[0]

    def missing(self, *names: str, hint: str | None = None) -> NoReturn:
        """Raise the error for a fact that must be there."""
        prefixes = [prefix for prefix, _ in reversed(self._places)]
        expected = " or ".join(f"{prefix}{name}" for name in names for prefix in prefixes)
        raise CheckpointError(f"{names[0]} is missing", key=names[0], file=self.file, expected=expected, hint=hint)

    def refuse(self, key: str, message: str, *, expected: object = None, hint: str | None = None) -> NoReturn:
        """Raise an error about the value of ``key``, a dotted path."""
        value: Any = self.data
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        found = None if value is None else _short(value)
        raise CheckpointError(message, key=key, file=self.file, expected=expected, found=found, hint=hint)

    def allow_only(self, section: str, known: Iterable[str]) -> None:
        """Refuse keys of a nested object (or of the top, for ``""``) that nobody here knows the meaning of."""
        values = self.data.get(section) or {} if section else self.data
        prefix = f"{section}." if section else ""
        for name in sorted(set(values).difference(known)):
            if values[name] is not None:
                self.refuse(
                    prefix + name,
                    f"{prefix}{name} is not understood",
                    hint="an unknown key may change what the draft computes; remove it from config.json only if it "
                    "belongs to training",
                )

    def _parsed(self, field: str, parse: Parser[T], found: tuple[str, Any], note: str) -> T:
        key, value = found
        try:
            result = parse(value)
        except ValueError as error:
            raise CheckpointError(
                f"{key} has a wrong value", key=key, file=self.file, expected=str(error), found=_short(value)
            ) from None
        self.sources[field] = Source(self.file.name, key, note)
        return result


def integer(minimum: int, maximum: int = LARGEST) -> Parser[int]:
    """A whole number in ``[minimum, maximum]``."""

    def parse(value: Any) -> int:
        if type(value) is not int or not minimum <= value <= maximum:
            raise ValueError(f"an integer in [{minimum}, {maximum}]")
        return value

    return parse


def number(*, positive: bool = False) -> Parser[float]:
    """A finite number; ``positive`` excludes zero and below."""
    words = "a positive number" if positive else "a finite number"

    def parse(value: Any) -> float:
        try:
            result = float(value) if type(value) in (int, float) else math.nan
        except OverflowError:
            result = math.inf
        if not math.isfinite(result) or (positive and result <= 0):
            raise ValueError(words)
        return result

    return parse


def boolean(value: Any) -> bool:
    """A truth value."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def choice(*values: str) -> Parser[str]:
    """One of some words."""

    def parse(value: Any) -> str:
        if value not in values:
            raise ValueError(values[0] if len(values) == 1 else f"one of {', '.join(values)}")
        return str(value)

    return parse


def integers(value: Any) -> tuple[int, ...]:
    """A list of whole numbers with at least one entry."""
    if not isinstance(value, list) or not value or any(type(item) is not int or abs(item) > LARGEST for item in value):
        raise ValueError("a list of integers")
    return tuple(value)


def _short(value: Any) -> str:
    """A value of the file for a message; long ones are cut."""
    return reprlib.repr(value)
