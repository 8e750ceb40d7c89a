"""``ovgraft inspect``."""

from __future__ import annotations

from pathlib import Path

import click

from ovgraft.cli.console import Console
from ovgraft.cli.options import global_options, json_option

_EXAMPLE = """\b
Example:
  ovgraft inspect qwen3
  ovgraft inspect grafted --json | jq '.packages[0].models[0].layers[].producer.name'
"""


@click.command("inspect", epilog=_EXAMPLE)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Also every op type, state, file and rt_info entry.")
@json_option
@global_options
@click.pass_obj
def command(console: Console, /, path: Path, everything: bool, as_json: bool) -> None:
    """Show what a model, a package or a draft is made of.

    PATH is an .xml, a folder of IRs, a folder with target/ and draft/, or the folder of a draft checkpoint. Weights are
    counted, never read.
    """
    from ovgraft import inspection

    with console.status() as status:
        status(f"reading {path}")
        found = inspection.inspect(path)
    if as_json:
        console.document(found.to_dict())
    else:
        console.data(*inspection.render_text(found, console.symbols, everything=everything))
