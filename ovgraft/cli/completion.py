"""What the shell offers behind Tab: names of passes and presets, and pipeline text word by word.

Reads the option dataclasses of passes and nothing heavier: an answer must come before the next key.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Iterator

import click
from click.shell_completion import BashComplete, CompletionItem

_OPEN = re.compile(r"(?:^|,)\s*([^\s,{}=]+)\s*\{([^{}]*)$")


class Bash(BashComplete):
    """Bash puts no space behind what goes on: ``name{``, ``key=``."""

    source_template = BashComplete.source_template.replace(
        "    return 0\n", "    [[ ${COMPREPLY[0]} == *[={,] ]] && compopt -o nospace\n\n    return 0\n"
    )


def passes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of passes."""
    return _items("", incomplete, _passes())


def presets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of presets."""
    return _items("", incomplete, _presets())


def pipeline_text(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The next word of a pipeline: a pass, an option of the one whose brace is open, or a value of that option."""
    found = _OPEN.search(incomplete)
    if found is None:
        before = incomplete[: incomplete.rfind(",") + 1]
        return _items(before, incomplete, _passes())
    name, inside = found[1], found[2]
    word = inside.rpartition(" ")[2]
    before = incomplete[: len(incomplete) - len(word)]
    key, equals, value = word.partition("=")
    if equals:
        before += f"{key}={value[: value.rfind(',') + 1]}"
        return _items(before, incomplete, ((choice, "") for choice in _choices(name, key)))
    given = {part.partition("=")[0] for part in inside.split(" ")[:-1]}
    return _items(before, incomplete, ((f"{key}=", text) for key, text in _options(name) if key not in given))


def names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What ``ovgraft passes`` explains: presets and pipelines."""
    return [*presets(ctx, param, incomplete), *pipeline_text(ctx, param, incomplete)]


def _items(before: str, incomplete: str, words: Iterable[tuple[str, str]]) -> list[CompletionItem]:
    whole = ((before + word, text) for word, text in words)
    return [CompletionItem(word, help=text) for word, text in whole if word.startswith(incomplete)]


def _passes() -> Iterator[tuple[str, str]]:
    from ovgraft.pipeline.registry import entries

    for entry in entries():
        yield entry.name, entry.summary or f"from {entry.distribution}"


def _presets() -> Iterator[tuple[str, str]]:
    from ovgraft.pipeline.presets import list_presets

    for preset in list_presets():
        yield preset.name, preset.summary


def _options(name: str) -> Iterator[tuple[str, str]]:
    from ovgraft.errors import SpecError
    from ovgraft.pipeline.options import describe_options
    from ovgraft.pipeline.registry import get_pass

    try:
        options = describe_options(get_pass(name))
    except SpecError:  # half a name, or a pass that cannot be loaded: nothing to offer
        return
    for option in options:
        yield option.key, option.help


def _choices(name: str, key: str) -> Iterator[str]:
    from ovgraft.errors import SpecError
    from ovgraft.pipeline.registry import get_pass

    try:
        hints = typing.get_type_hints(get_pass(name))
    except (SpecError, NameError):
        return
    yield from _literals(hints.get(key.replace("-", "_")))


def _literals(kind: object) -> Iterator[str]:
    if kind is bool:
        yield from ("true", "false")
    for part in typing.get_args(kind):
        if isinstance(part, str):
            yield part
        elif part is type(None):
            yield "none"
        else:
            yield from _literals(part)
