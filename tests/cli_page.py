"""docs/cli.md, from the commands themselves: ``python -m tests.cli_page`` writes it, a test keeps it true."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from ovgraft.cli.main import cli
from ovgraft.pipeline.presets import list_presets
from ovgraft.pipeline.registry import BUILT_IN, get_pass
from tests.support import ROOT

PAGE = ROOT / "docs" / "cli.md"
_WIDTH = 100


def page() -> str:
    """The whole page."""
    parts = [
        "# Commands and passes",
        "",
        "Written by `python -m tests.cli_page` from the program itself. Data goes to stdout, all else to stderr.",
        "What takes more than half a second tells on a terminal how far it is; `-v` adds the seconds of each step.",
        "",
        "## Shell completion",
        "",
        "Tab completes commands, options, passes and presets, and within `-p 'NAME{` the options of the pass and their",
        "values. Put one of these into the start-up file of the shell.",
        "",
        "```sh",
        'eval "$(_OVGRAFT_COMPLETE=bash_source ovgraft)"    # bash',
        'eval "$(_OVGRAFT_COMPLETE=zsh_source ovgraft)"     # zsh',
        "_OVGRAFT_COMPLETE=fish_source ovgraft | source     # fish",
        "```",
        "",
    ]
    context = _context(cli, "ovgraft")
    parts += _command("ovgraft", cli, context)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        parts += _command(f"ovgraft {name}", command, _context(command, name, context))
    parts += ["## Passes", ""]
    for name in BUILT_IN:
        item = get_pass(name)
        parts += [f"### {name}", "", item.summary(), ""]
        options = item.options()
        if options:
            parts += ["| option | default | meaning |", "|---|---|---|"]
            parts += [
                f"| `{o.name.replace('_', '-')}` | {_default(o.default)} | {o.metadata['help']} |" for o in options
            ]
            parts.append("")
    parts += ["## Presets", "", "| preset | passes | for |", "|---|---|---|"]
    parts += [f"| `{p.name}` | `{p.text}` | {p.summary} |" for p in list_presets()]
    return "\n".join(parts) + "\n"


def _context(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    """As a run would make it, at one width whatever the terminal."""
    width = {"terminal_width": _WIDTH, "max_content_width": _WIDTH}
    return command.make_context(name, [], parent, resilient_parsing=True, **width)


def _command(title: str, command: click.Command, context: click.Context) -> list[str]:
    return [f"## {title}", "", "```text", command.get_help(context).rstrip(), "```", ""]


def _default(value: object) -> str:
    if value is dataclasses.MISSING:
        return "must be given"
    if value is None:
        return "worked out"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value}"


def main(file: Path = PAGE) -> None:
    """Write it."""
    file.write_text(page())


if __name__ == "__main__":
    main()
