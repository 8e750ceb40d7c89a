"""JSON as a checkpoint must have it: an object, no key twice, no NaN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ovgraft.errors import CheckpointError


def parse_object(data: bytes, file: Path) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        data: UTF-8 text.
        file: Where it is from, for messages.

    Raises:
        CheckpointError: It is not JSON, not an object, repeats a key (parsers differ in which one they keep), or holds
            NaN or Infinity.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise CheckpointError(f"key {key} stands twice", key=key, file=file)
            result[key] = value
        return result

    def no_constant(text: str) -> Any:
        raise CheckpointError("a value that JSON does not have", file=file, found=text)

    try:
        value = json.loads(data.decode(), object_pairs_hook=unique, parse_constant=no_constant)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError("not valid JSON", file=file, found=str(error)) from error
    if not isinstance(value, dict):
        raise CheckpointError("not a JSON object", file=file, found=type(value).__name__)
    return value
