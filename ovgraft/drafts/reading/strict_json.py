"""JSON as a checkpoint must have it: an object, no key twice, no NaN, no number beyond 64 bits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ovgraft.errors import CheckpointError

_MOST_BITS = 64
_LONGEST_INTEGER = 1000  # digits; Python refuses to print or read a few thousand


def parse_object(data: bytes, file: Path) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        data: UTF-8 text.
        file: Where it is from, for messages.

    Raises:
        CheckpointError: It is not JSON, not an object, repeats a key (parsers differ in which one they keep), or holds
            NaN, Infinity, or a number that no 64 bits hold.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise CheckpointError(f"key {key} stands twice", key=key, file=file)
            for number in _integers(value):
                if number.bit_length() > _MOST_BITS:
                    digits = f"{len(str(abs(number)))} digits"
                    raise CheckpointError(f"key {key} has a number out of all range", key=key, file=file, found=digits)
            result[key] = value
        return result

    def no_constant(text: str) -> Any:
        raise CheckpointError("a value that JSON does not have", file=file, found=text)

    def short_integer(text: str) -> int:
        if len(text.lstrip("-")) > _LONGEST_INTEGER:
            raise CheckpointError("a number out of all range", file=file, found=f"{len(text)} digits")
        return int(text)

    def finite(text: str) -> float:
        if not math.isfinite(number := float(text)):
            raise CheckpointError("a number out of all range", file=file, found=text[:40])
        return number

    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=unique,
            parse_constant=no_constant,
            parse_int=short_integer,
            parse_float=finite,
        )
    except RecursionError as error:
        raise CheckpointError("not valid JSON", file=file, found="lists or objects nested without end") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError("not valid JSON", file=file, found=str(error)) from error
    if not isinstance(value, dict):
        raise CheckpointError("not a JSON object", file=file, found=type(value).__name__)
    return value


def _integers(value: Any) -> Iterator[int]:
    """The integers of a value; those of objects in it have been looked at."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _integers(item)
