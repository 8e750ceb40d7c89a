"""The options of a pass: fields of its dataclass, between Python, pipeline text and TOML."""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from ovgraft.errors import SpecError
from ovgraft.passbase import Pass
from ovgraft.pipeline import values
from ovgraft.pipeline.registry import did_you_mean
from ovgraft.pipeline.spec import Item, Option, Span

Field = dataclasses.Field[Any]


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option, for help texts.

    Attributes:
        key: Name in text and TOML, kebab-case.
        type: What it takes, for example ``integers separated by commas, or none``.
        default: Its default in text form; None when the option is required.
        help: One line.
        example: A value in text form, when the pass gives one.
    """

    key: str
    type: str
    default: str | None
    help: str
    example: str | None


def describe_options(cls: type[Pass]) -> tuple[OptionInfo, ...]:
    """The options of a pass class, in declaration order."""
    declared = _declared(cls)
    infos = []
    for field in cls.options():
        kind, default = declared[field.name], _default(field)
        infos.append(
            OptionInfo(
                key_of(field),
                values.describe(kind, size=_is_size(field)),
                None if default is dataclasses.MISSING else values.to_text(default, kind, size=_is_size(field)),
                str(field.metadata.get("help", "")),
                field.metadata.get("example"),
            )
        )
    return tuple(infos)


def key_of(field: Field) -> str:
    """Name of an option in text and TOML."""
    return field.name.replace("_", "-")


def from_item(cls: type[Pass], item: Item, text: str) -> Pass:
    """Make a pass from its part of a pipeline text.

    Args:
        cls: The class ``item.name`` stands for.
        item: Name and options as written.
        text: The whole pipeline text, for the caret.

    Raises:
        SpecError: An unknown option, a value of the wrong type, a required option missing, or a combination the pass
            itself refuses.
    """
    given: dict[str, Any] = {}
    span: Span = item.name_span
    try:
        for option in item.options:
            span = (option.span[0], option.span[0] + len(option.key))
            field, kind = _find(cls, option.key)
            span = option.value_span
            with _explained(cls, field, repr(text[slice(*option.value_span)]), _comma_hint(cls, option)):
                given[field.name] = values.from_text(option.parts, kind, size=_is_size(field))
        span = item.name_span
        return _make(cls, given)
    except SpecError as error:
        error.text, error.span = text, span
        raise


def from_table(cls: type[Pass], table: Mapping[str, Any]) -> Pass:
    """Make a pass from TOML keys and values.

    Raises:
        SpecError: As :func:`from_item`, without a position.
    """
    given: dict[str, Any] = {}
    for key, value in table.items():
        field, kind = _find(cls, key)
        with _explained(cls, field, repr(value)):
            given[field.name] = values.from_toml(value, kind, size=_is_size(field))
    return _make(cls, given)


def checked(item: Pass) -> Pass:
    """The same pass, options of the declared types made sure of (a list becomes a tuple).

    Raises:
        SpecError: An option has a value of another type.
    """
    cls = type(item)
    declared = _declared(cls)
    given = {field.name: getattr(item, field.name) for field in cls.options()}
    meant = {}
    for field in cls.options():
        with _explained(cls, field, repr(given[field.name])):
            meant[field.name] = values.from_python(given[field.name], declared[field.name])
    return item if meant == given else _make(cls, meant)


def to_text(item: Pass, *, portable: bool = False) -> str:
    """Pipeline text of one pass; options at their defaults are left out.

    Args:
        item: The pass.
        portable: Shorten absolute paths to their last name, for what is written into models and reports.

    Raises:
        SpecError: An option has a value that no text means.
    """
    cls = type(item)
    declared = _declared(cls)
    words = []
    for field, value in _given(item):
        said = _last_name(value, field) if portable else value
        try:
            words.append(f"{key_of(field)}={values.to_text(said, declared[field.name], size=_is_size(field))}")
        except ValueError as error:
            raise SpecError(f"option '{key_of(field)}' of '{cls.name}': {error}") from None
    return f"{cls.name}{{{' '.join(words)}}}" if words else cls.name


def to_table(item: Pass) -> dict[str, Any]:
    """Options as TOML values; options at their defaults are left out."""
    return {key_of(field): values.to_toml(value) for field, value in _given(item)}


def _declared(cls: type[Pass]) -> dict[str, Any]:
    """Field name -> type; annotations are text under ``from __future__ import annotations``."""
    try:
        return typing.get_type_hints(cls)
    except NameError as error:
        raise SpecError(f"pass '{cls.name}' has options of unknown type: {error}") from error


def _is_size(field: Field) -> bool:
    return field.metadata.get("unit") == "bytes"


def _default(field: Field) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _given(item: Pass) -> Iterator[tuple[Field, Any]]:
    for field in item.options():
        value = getattr(item, field.name)
        if value != _default(field):
            yield field, value


def _find(cls: type[Pass], key: str) -> tuple[Field, Any]:
    fields = {key_of(field): field for field in cls.options()}
    if key not in fields:
        more = f"its options: {', '.join(fields)}" if fields else "it takes none"
        raise SpecError(f"pass '{cls.name}' has no option '{key}'", hint=did_you_mean(key, fields, more))
    return fields[key], _declared(cls)[fields[key].name]


def _make(cls: type[Pass], given: dict[str, Any]) -> Pass:
    for field in cls.options():
        if field.name not in given and _default(field) is dataclasses.MISSING:
            raise SpecError(f"pass '{cls.name}' needs the option '{key_of(field)}'", hint=_example(field))
    try:
        return cls(**given)
    except ValueError as error:  # the pass refuses the combination
        raise SpecError(f"pass '{cls.name}': {error}") from error


@contextlib.contextmanager
def _explained(cls: type[Pass], field: Field, found: str, hint: str | None = None) -> Iterator[None]:
    """Name pass, option and value in the errors of :mod:`ovgraft.pipeline.values`."""
    subject = f"option '{key_of(field)}' of '{cls.name}'"
    try:
        yield
    except ValueError as error:
        raise SpecError(f"{subject} {error}, got {found}", hint=hint or _example(field)) from None
    except TypeError as error:  # the author's mistake
        raise SpecError(f"{subject} has a type options cannot have: {error}") from error


def _comma_hint(cls: type[Pass], option: Option) -> str | None:
    keys = tuple(f"{key_of(field)}=" for field in cls.options())
    follows = any(part.text.startswith(keys) for part in option.parts[1:])
    return "options are separated by spaces, not commas" if follows else None


def _example(field: Field) -> str | None:
    if _is_size(field):
        return "examples: 4096, 64KiB, 1MiB"
    example = field.metadata.get("example")
    return None if example is None else f"example: {key_of(field)}={example}"


def _last_name(value: Any, field: Field) -> Any:
    """An absolute path by its last name: no machine's folders in reports and models."""
    if isinstance(value, str) and field.metadata.get("path") and PurePath(value).is_absolute():
        return PurePath(value).name
    if isinstance(value, PurePath) and value.is_absolute():
        return type(value)(value.name)
    return value
