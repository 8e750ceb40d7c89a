"""The ``ovgraft`` command: global options, subcommands loaded when they run, and what every error becomes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

import ovgraft
from ovgraft.cli.console import Console
from ovgraft.cli.options import global_options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

INTERRUPTED = 130
BUG = 5

_COMMANDS = {
    "apply": "Run passes over a model, or over a target and its draft.",
    "build-draft": "Build the IR of a draft from its checkpoint.",
    "diff": "Tell what is different between two models, whatever their nodes are called.",
    "doctor": "Check that a draft fits a target, and that nothing is about to go silently wrong.",
    "inspect": "Show what a model, a package or a draft is made of.",
    "passes": "List the passes, or explain one.",
    "verify": "Check that a model runs, or that two give the same numbers.",
}
"""Name -> one line, so that ``--help`` imports no command; a test holds the lines against the commands."""

_EPILOG = """\b
Exit codes:
  0    done, or the same
  1    the answer is no: verify and diff found a difference, doctor that a draft does not fit
  2    usage, pipeline text and configuration included
  3    a file is missing, damaged or in the way
  4    a pass failed or refused
  5    a bug in ovgraft
  130  interrupted

\b
Example:
  ovgraft apply --target qwen3 --draft qwen3_dflash --preset dflash -o grafted
"""


class LazyGroup(click.Group):
    """Imports a command when it runs, and turns every exception into a sentence and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in alphabetical order."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import ``ovgraft.cli.cmd_<name>``, hyphens as underscores, and return its ``command``."""
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"ovgraft.cli.cmd_{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command ``args`` begin with, or the closest ones."""
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            from difflib import get_close_matches

            close = get_close_matches(args[0], _COMMANDS, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            ctx.fail(f"no such command '{args[0]}'{hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and their lines from the table above, and the options of the group."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=_COMMANDS[name]) for name in self.list_commands(ctx)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(item for item in found if item.value.startswith(incomplete)), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, from the lines above."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name]) for name in self.list_commands(ctx)])

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run and exit."""
        if "_OVGRAFT_COMPLETE" in os.environ:
            from click.shell_completion import add_completion_class

            from ovgraft.cli.completion import Bash

            add_completion_class(Bash)
        _open_closed_streams()
        console = Console()
        run = super().main
        code = _guarded(console, lambda: run(args, standalone_mode=False, obj=console, **extra))
        console.timings()
        sys.exit(code)


def _open_closed_streams() -> None:
    """Python has None for a stream that was closed by whoever started it; nobody reads what is written there."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _guarded(console: Console, run: Callable[[], object]) -> int:
    """Run, and say what went wrong.

    Returns:
        The exit code.
    """
    try:
        outcome = run()
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):  # click takes every one for the end of stdin
            return _failed(console, error.__cause__)
        console.sentence("interrupted")
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:  # its message is the whole help
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.UsageError as error:
        return _usage(console, error)
    except click.ClickException as error:
        console.sentence(error.format_message())
        return error.exit_code
    except Exception as error:
        if _was_interrupted(error):
            console.sentence("interrupted")
            return INTERRUPTED
        return _failed(console, error)
    return outcome if isinstance(outcome, int) else 0


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether an interrupt is behind an error: a C module whose import is interrupted says that it failed."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _usage(console: Console, error: click.UsageError) -> int:
    details = []
    if error.ctx is not None:
        details.append(("usage", " ".join(error.ctx.command.get_usage(error.ctx).removeprefix("Usage: ").split())))
        details.append(("hint", f"{error.ctx.command_path} --help explains it"))
    message = error.format_message().rstrip(".")
    console.sentence(message[:1].lower() + message[1:], *details)
    return error.exit_code


def _failed(console: Console, error: Exception) -> int:
    from ovgraft.errors import OvgraftError, system_error

    if isinstance(error, OSError):
        wrapped = system_error(error)
        wrapped.__cause__ = error
        error = wrapped
    if isinstance(error, OvgraftError):
        console.error(error)
        return error.exit_code
    console.bug(error)
    return BUG


def _help_width() -> int:
    """What click would use; asked here because click imports all of shutil for it."""
    try:
        columns = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size().columns
    except (ValueError, OSError):
        columns = 80
    return max(min(columns, 80) - 2, 50)


_CONTEXT = {"help_option_names": ["-h", "--help"], "terminal_width": _help_width()}


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"ovgraft {ovgraft.__version__} (openvino {version('openvino')})")
    ctx.exit()


@click.group("ovgraft", cls=LazyGroup, epilog=_EPILOG, context_settings=_CONTEXT)
@global_options
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show versions."
)
def cli() -> None:
    """Graft speculative-decoding drafts onto OpenVINO LLMs by editing the IR."""


def main() -> None:
    """Entry point of the ``ovgraft`` script."""
    cli.main(prog_name="ovgraft")
