"""``ovgraft build-draft``."""

from __future__ import annotations

from typing import Any

import click

from ovgraft.cli.console import Console
from ovgraft.cli.options import PATH, global_options, json_option

_EXAMPLE = """\b
Example:
  ovgraft build-draft qwen3-dspark --target qwen3 -o qwen3-dspark-ir
  ovgraft build-draft qwen3-dflash-speculators --form per-row -o draft
"""


@click.command("build-draft", epilog=_EXAMPLE)
@click.argument("checkpoint", type=PATH)
@click.option("--target", type=PATH, metavar="DIR", help="The model that is drafted for; what belongs to it stays out.")
@click.option("-o", "--output", type=PATH, metavar="OUT", required=True, help="Folder of the draft.")
@click.option(
    "--form",
    type=click.Choice(["sdpa", "per-row"]),
    default="sdpa",
    help="sdpa: the released exporter's ports; per-row: what paged-attention converts.",
)
@click.option(
    "--sliding-in-block",
    type=click.Choice(["auto", "causal", "bidirectional"]),
    default="auto",
    help="Whether a row of a sliding layer sees later rows of its block; default: as the checkpoint says.",
)
@click.option("--keep-copies", is_flag=True, help="Keep copies of a target's tables that are not this target's own.")
@click.option("--force", is_flag=True, help="Replace OUT when it exists.")
@json_option
@global_options
@click.pass_obj
def command(console: Console, /, as_json: bool, **options: Any) -> None:
    """Build the IR of a draft from its checkpoint.

    CHECKPOINT is a folder with config.json and safetensors, .npz or ONNX weights, in any published format. OUT gets the
    backbone, its Markov head or candidate selector if it has one, and the checkpoint's side files.

    With --target, widths, layers, vocabulary and tables are compared with the target, and copies of its embedding and
    output layer are left out. Neither model is changed: grafting is what `ovgraft apply` does.
    """
    with console.status() as status:
        status("starting")
        from ovgraft.cli.building import Request, build

    build(console, Request(**options))
