"""The TOML form of a pipeline.

.. code-block:: toml

    schema = 1
    verify = "each"                 # none | end | each
    [[pass]]
    use = "expose-hidden-states"
    layers = [1, 3, 4]

Everything outside ``[[pass]]`` but ``schema`` is optional. Option keys are those of the text form; ``{}`` is None.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ovgraft.errors import ModelFileError, SpecError
from ovgraft.passbase import Pass
from ovgraft.pipeline import options
from ovgraft.pipeline.pipeline import Pipeline
from ovgraft.pipeline.registry import did_you_mean, get_pass
from ovgraft.pipeline.run import OnError
from ovgraft.pipeline.spec import quote

SCHEMA = 1

When = Literal["none", "end", "each"]
"""When to compare numbers: never, after the last pass, after each."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")
_RUN_KEYS = ("on-error", "verify", "strict")


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """What a TOML file says: the pipeline and how to run it; None where it says nothing.

    Attributes:
        pipeline: The passes.
        on_error: What to do when a pass fails.
        verify: When to compare numbers.
        strict: Whether passes must prove what they report.
    """

    pipeline: Pipeline
    on_error: OnError | None = None
    verify: When | None = None
    strict: bool | None = None


def load(path: Path, lookup: Callable[[str], type[Pass]] = get_pass) -> PipelineFile:
    """Read a TOML file.

    Raises:
        ModelFileError: It cannot be read.
        SpecError: It is no TOML, or has a key or value that means nothing; the error names file and key.
    """
    if path.exists() and not (path.is_file() or path.is_fifo()):  # a device may never end
        raise ModelFileError("the pipeline file is no file", file=path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ModelFileError(f"the pipeline file cannot be read: {reason}", file=path) from error
    try:
        return loads(text, lookup)
    except SpecError as error:
        error.file = path
        raise


def loads(text: str, lookup: Callable[[str], type[Pass]] = get_pass) -> PipelineFile:
    """Read TOML text.

    Raises:
        SpecError: As :func:`load`, without the file.
    """
    data = _parse(text)
    if data.get("schema") != SCHEMA or data["schema"] is True:
        found = f"got schema = {data['schema']!r}" if "schema" in data else "the key is missing"
        raise SpecError(f"key 'schema' expects {SCHEMA}, {found}")
    known = ("schema", *_RUN_KEYS, "pass")
    for key in data:
        if key not in known:
            raise SpecError(f"unknown key '{key}'", hint=did_you_mean(key, known, f"known keys: {', '.join(known)}"))
    on_error = _choice(data, "on-error", get_args(OnError))
    verify = _choice(data, "verify", get_args(When))
    strict = _choice(data, "strict", (True, False))
    tables = data.get("pass", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise SpecError("key 'pass' expects tables, each headed [[pass]]")
    passes = [_pass(table, position, lookup) for position, table in enumerate(tables, 1)]
    return PipelineFile(Pipeline(passes), on_error, verify, strict)


def dumps(pipeline: Pipeline, file: PipelineFile | None = None) -> str:
    """Write the TOML form; ``loads(dumps(p)).pipeline == p``.

    Args:
        pipeline: The passes.
        file: Run options to write along; its pipeline is not looked at.
    """
    head: dict[str, Any] = {"schema": SCHEMA}
    if file is not None:
        said = {"on-error": file.on_error, "verify": file.verify, "strict": file.strict}
        head |= {key: value for key, value in said.items() if value is not None}
    blocks = [_lines(head)]
    for item in pipeline:
        table = options.to_table(item)
        if "use" in table:
            raise SpecError(f"option 'use' of '{item.name}' cannot be written as TOML: the key names the pass")
        blocks.append(["", "[[pass]]", *_lines({"use": item.name, **table})])
    return "".join(f"{line}\n" for block in blocks for line in block)


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, span = str(error), None
        if place := _PLACE.search(message):
            line, column = int(place[1]), int(place[2])
            start = sum(len(row) for row in text.splitlines(keepends=True)[: line - 1]) + column - 1
            message, span = message[: place.start()] + f" in line {line}", (start, start + 1)
        raise SpecError(f"not TOML: {message}", text=text, span=span) from error


def _pass(table: Mapping[str, Any], position: int, lookup: Callable[[str], type[Pass]]) -> Pass:
    name = table.get("use")
    if not isinstance(name, str):
        raise SpecError(f"[[pass]] number {position} needs the key 'use', the name of a pass")
    return options.from_table(lookup(name), {key: value for key, value in table.items() if key != "use"})


def _choice(data: Mapping[str, Any], key: str, choices: tuple[Any, ...]) -> Any:
    if key not in data:
        return None
    value = data[key]
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        words = ", ".join(str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in choices)
        raise SpecError(f"key '{key}' expects one of {words}, got {value!r}")
    return value


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{key if _BARE_KEY.fullmatch(key) else quote(key)} = {_value(value)}" for key, value in table.items()]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{}"
    return repr(value)  # int and float: Python's form is TOML's
