"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ovgraft.cli.console import Console

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Function = TypeVar("Function", bound=Callable[..., Any])


class _AnyPath(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":  # a shell variable that is not set; Path("") would be the current folder
            self.fail("an empty path", param, ctx)
        return super().convert(value, param, ctx)


PATH = _AnyPath(path_type=Path, readable=False)
"""Any path, there or not: whoever opens it says what is wrong, and that is exit code 3, not 2."""


def completes(what: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """A function of :mod:`ovgraft.cli.completion`, imported when the shell asks."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from ovgraft.cli import completion

        found: list[CompletionItem] = getattr(completion, what)(ctx, param, incomplete)
        return found

    return complete


def global_options(function: Function) -> Function:
    """``-v``, ``-q``, ``--color`` and ``--no-color``, taken before and after the command's name."""
    for decorate in (_NO_COLOR, _COLOR, _QUIET, _VERBOSE):
        function = decorate(function)
    return function


def json_option(function: Function) -> Function:
    """``--json``: one document on stdout."""
    return _JSON(function)


def _set_verbosity(ctx: click.Context, param: click.Parameter, value: int) -> None:
    ctx.ensure_object(Console).verbosity += value


def _set_quiet(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Console).verbosity = -1


def _set_color(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None:
        ctx.ensure_object(Console).color = value


def _set_json(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    ctx.ensure_object(Console).json = value
    return value


_VERBOSE = click.option(
    "-v",
    "--verbose",
    count=True,
    expose_value=False,
    callback=_set_verbosity,
    help="Print causes and how long each step took; -vv prints tracebacks.",
)
_QUIET = click.option(
    "-q", "--quiet", is_flag=True, expose_value=False, callback=_set_quiet, help="Only data and errors."
)
_COLOR = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    expose_value=False,
    callback=_set_color,
    help="Default auto: a terminal, NO_COLOR and FORCE_COLOR decide.",
)
_NO_COLOR = click.option(
    "--no-color",
    "no_color",
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, param, value: _set_color(ctx, param, "never" if value else None),
    help="The same as --color never.",
)
_JSON = click.option("--json", "as_json", is_flag=True, callback=_set_json, help="One JSON document on stdout.")
