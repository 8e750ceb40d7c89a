"""One option value between its Python form, its text and TOML, led by the declared type.

A type may be bool, int, float, str, Path, a Literal, a StrEnum, a tuple of those, or a union of some with None.
``size`` marks ints that count bytes: they are also written ``64KiB``. In text ``none`` is None, ``()`` the empty
tuple, and quotes make a word text; in TOML ``{}`` is None.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

import msgspec

from ovgraft.pipeline.spec import Part, is_bare, write_value

_SIZE = re.compile(r"(\d+)(?:B|([KMGT])(?:iB)?)?")
_UNITS = ("", "KiB", "MiB", "GiB", "TiB")
_WORDS: dict[Any, tuple[str, str]] = {
    bool: ("true or false", "true or false"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    str: ("text", "words"),
    Path: ("a path", "paths"),
}

Reading = tuple[Any, bool]
"""A value as it may have been meant, and whether its type must match exactly."""


def from_python(value: Any, declared: Any) -> Any:
    """A value given in Python, with lists made tuples.

    Raises:
        ValueError: It is not of the declared type.
        TypeError: The declared type is not one an option may have.
    """
    plain = value.value if isinstance(value, Enum) else value
    return _first([(plain, True)], declared, size=False)


def from_text(parts: tuple[Part, ...], declared: Any, *, size: bool = False) -> Any:
    """What a written value means.

    Raises:
        ValueError: It does not fit the declared type.
        TypeError: The declared type is not one an option may have.
    """
    return _first(_text_readings(parts, declared), declared, size)


def from_toml(value: Any, declared: Any, *, size: bool = False) -> Any:
    """What a TOML value means; a string may stand for a number, a path or a size.

    Raises:
        ValueError: It does not fit the declared type.
        TypeError: The declared type is not one an option may have.
    """
    return _first(_toml_readings(value), declared, size)


def to_text(value: Any, declared: Any, *, size: bool = False) -> str:
    """The plainest text that reads back as the value.

    Raises:
        ValueError: There is none, for example for NaN.
        TypeError: The declared type is not one an option may have.
    """
    for parts in _spellings(value, size):
        try:
            if from_text(parts, declared, size=size) == value:
                return write_value(parts)
        except ValueError:
            continue
    raise ValueError(f"no text means {value!r}")


def to_toml(value: Any) -> Any:
    """The value with types TOML has."""
    if value is None:
        return {}
    if isinstance(value, tuple):
        return [to_toml(entry) for entry in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, PurePath) else value


def describe(declared: Any, *, size: bool = False, plural: bool = False) -> str:
    """What an option takes, in words: ``integers separated by commas, or none``."""
    arguments = typing.get_args(declared)
    if size and declared is int:
        return "sizes" if plural else "a size"
    if declared in _WORDS:
        return _WORDS[declared][plural]
    if typing.get_origin(declared) is typing.Literal:
        return " or ".join(map(str, arguments)) if plural else f"one of {', '.join(map(str, arguments))}"
    if typing.get_origin(declared) is tuple:
        kinds = [describe(entry, size=size, plural=True) for entry in arguments if entry is not Ellipsis]
        return f"{' and '.join(dict.fromkeys(kinds))} separated by commas"
    if _is_union(declared):
        kinds = [describe(entry, size=size) for entry in arguments if entry is not types.NoneType]
        return ", or ".join(kinds + ["none"] * (types.NoneType in arguments))
    if isinstance(declared, type) and issubclass(declared, Enum):
        return f"one of {', '.join(str(entry.value) for entry in declared)}"
    return str(declared)


def _is_union(declared: Any) -> bool:
    return typing.get_origin(declared) in (typing.Union, types.UnionType)


def _text_readings(parts: tuple[Part, ...], declared: Any) -> Iterator[Reading]:
    """Likeliest first; which one it was, the declared type decides."""
    words = [part.text for part in parts]
    if len(parts) == 1:
        [part] = parts
        if part.quoted:
            yield part.text, True
        elif part.text == "none" and _is_union(declared) and types.NoneType in typing.get_args(declared):
            yield None, True
        elif part.text == "()":
            yield [], True
        yield part.text, False
    yield words, False
    if not any(part.quoted for part in parts):
        yield ",".join(words), False  # text with commas in it


def _toml_readings(value: Any) -> Iterator[Reading]:
    if value == {}:
        yield None, True
    else:
        yield value, True
        if isinstance(value, str):
            yield value, False


def _first(readings: Iterable[Reading], declared: Any, size: bool) -> Any:
    for value, exact in readings:
        try:
            return msgspec.convert(_count(value) if size else value, declared, strict=exact, dec_hook=_decode)
        except msgspec.ValidationError:
            continue
        except NotImplementedError as error:
            raise TypeError(str(error)) from None
    raise ValueError(f"expects {describe(declared, size=size)}")


def _count(value: Any) -> Any:
    """Bytes for ``64KiB``; anything else as it is."""
    if isinstance(value, list):
        return [_count(entry) for entry in value]
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return value if match is None else int(match[1]) << (10 * "_KMGT".index(match[2] or "_"))


def _decode(declared: type[Any], value: Any) -> Any:
    if issubclass(declared, PurePath):
        if isinstance(value, (str, PurePath)):
            return Path(value)
        raise ValueError("expects a path")  # msgspec makes it a ValidationError
    raise NotImplementedError(f"{declared.__name__} is no option type")  # TypeError would be taken for a bad value


def _spellings(value: Any, size: bool) -> Iterator[tuple[Part, ...]]:
    """Ways to write a value, plainest first."""
    if isinstance(value, tuple):
        plain = [next(_spellings(entry, size))[0] for entry in value]
        yield tuple(plain) or (Part("()", quoted=False),)
        yield tuple(Part(part.text, quoted=True) for part in plain)
        return
    word = _word(value, size)
    if is_bare(word):
        yield (Part(word, quoted=False),)
    yield (Part(word, quoted=True),)


def _word(value: Any, size: bool) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if size and isinstance(value, int) and value > 0:
        power = 0
        while value % 1024 == 0 and power + 1 < len(_UNITS):
            value, power = value // 1024, power + 1
        return f"{value}{_UNITS[power]}"
    return str(value.value if isinstance(value, Enum) else value)
