"""``ovgraft diff``."""

from __future__ import annotations

from pathlib import Path

import click

from ovgraft.cli.console import Console
from ovgraft.cli.options import PATH, global_options, json_option

_EXAMPLE = """\b
Example:
  ovgraft diff qwen3 grafted/target
  ovgraft diff before after --weights --stat
  ovgraft diff before after --json | jq .summary
"""


@click.command("diff", epilog=_EXAMPLE)
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@click.option("--weights", is_flag=True, help="Also compare the bytes of all constants.")
@click.option("--stat", is_flag=True, help="Words and numbers only, no nodes.")
@json_option
@global_options
@click.pass_context
def command(ctx: click.Context, /, a: Path, b: Path, weights: bool, stat: bool, as_json: bool) -> None:
    """Tell what is different between two models, whatever their nodes are called.

    A and B are an .xml, a package folder, or a folder with target/ and draft/, whose models are compared with their
    namesakes. Nodes are matched by structure; another friendly name is no difference. Without --weights constants are
    told apart by type and shape, small integers and single numbers by value.

    Exits with 1 when something is different.
    """
    console: Console = ctx.obj
    with console.status() as status:
        status("starting")
        from ovgraft.checks import diff
        from ovgraft.cli.diff_table import diff_lines
        from ovgraft.cli.opening import open_graft

        status(f"reading {a}")
        first = open_graft(a)
        status(f"reading {b}")
        found = diff.diff_grafts(first, open_graft(b), weights=weights, status=status)
    if as_json:
        console.document(found.to_dict(stat=stat))
    else:
        console.data(*diff_lines(found, console.symbols, stat=stat))
    ctx.exit(0 if found.equal else 1)
