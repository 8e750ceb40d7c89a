"""``ovgraft apply``."""

from __future__ import annotations

from typing import Any

import click

from ovgraft.cli.console import Console
from ovgraft.cli.options import PATH, completes, global_options, json_option

_EXAMPLE = """\b
Example:
  ovgraft apply qwen3 --preset genai -o qwen3-annotated
  ovgraft apply --target qwen3 --draft qwen3_dflash --preset dflash --verify -o grafted
  ovgraft apply qwen3.xml -p 'expose-hidden-states{layers=1,3,4}' --dry-run
"""


@click.command("apply", epilog=_EXAMPLE)
@click.argument("model", type=PATH, required=False)
@click.option("--target", type=PATH, metavar="DIR", help="The model that is drafted for.")
@click.option("--draft", type=PATH, metavar="DIR", help="Its draft: a package, an .xml, or a checkpoint folder.")
@click.option(
    "-p",
    "--passes",
    multiple=True,
    metavar="PASSES",
    shell_complete=completes("pipeline_text"),
    help="Pipeline text; may repeat.",
)
@click.option("-c", "--config", type=PATH, metavar="FILE.toml", help="A pipeline file; runs before -p.")
@click.option(
    "--preset",
    metavar="NAME",
    shell_complete=completes("presets"),
    help="A ready-made pipeline; runs first. `ovgraft passes` lists them.",
)
@click.option(
    "--skip", multiple=True, metavar="PASS", shell_complete=completes("passes"), help="Leave this pass out; may repeat."
)
@click.option("-o", "--output", type=PATH, metavar="OUT", help="A folder, or an .xml when the input is one.")
@click.option("--in-place", is_flag=True, help="Replace the input.")
@click.option("--force", is_flag=True, help="Replace OUT when it exists.")
@click.option("--dry-run", is_flag=True, help="Do everything but write.")
@click.option(
    "--weights",
    type=click.Choice(["copy", "link"]),
    default="copy",
    help="How an unchanged .bin gets to OUT; link makes a hard link.",
)
@click.option(
    "--verify",
    is_flag=False,
    flag_value="end",
    type=click.Choice(["none", "end", "each"]),
    help="Compare numbers with the input at the end, or after each pass.",
)
@click.option("--strict", is_flag=True, default=None, help="Passes must prove what they report, by fingerprints.")
@click.option("--on-error", type=click.Choice(["stop", "skip"]), help="Default stop: a failed pass ends the run.")
@click.option("--report", type=PATH, metavar="FILE", help="Write the report as JSON, with durations and paths.")
@click.option("--dump-dir", type=PATH, metavar="DIR", help="Save the models after each pass that changed something.")
@click.option(
    "--reproducer", type=PATH, metavar="DIR", help="On failure write what the failed pass met, and the command."
)
@json_option
@global_options
@click.pass_obj
def command(console: Console, /, as_json: bool, **options: Any) -> None:
    """Run passes over a model, or over a target and its draft.

    MODEL is an .xml, a package folder, or a folder with target/ and draft/. With a draft, OUT gets target/, draft/ and
    graft.json, the record of what was done. A pass that fails is rolled back and nothing is written.
    """
    with console.status() as status:
        status("starting")
        from ovgraft.cli.applying import Request, apply

    apply(console, Request(**options))
