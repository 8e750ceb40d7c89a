"""``ovgraft inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from ovgraft.cli.console import Console
from ovgraft.cli.options import PATH, global_options, json_option

if TYPE_CHECKING:
    from ovgraft.cli.rendering import Drawing
    from ovgraft.cli.status import Status
    from ovgraft.inspection import Request

_EXAMPLE = """\b
Example:
  ovgraft inspect qwen3
  ovgraft inspect qwen3 --layers --weights
  ovgraft inspect qwen3 --around __module.lm_head/ov_ext::linear/MatMul --hops 2
  ovgraft inspect grafted --format html -o grafted.html
  ovgraft inspect grafted --json | jq '.packages[0].models[0].layers[].producer.name'
"""


@click.command("inspect", epilog=_EXAMPLE)
@click.argument("path", type=PATH)
@click.option(
    "--layers", is_flag=True, help="Each layer: attention, heads, window, sinks, weights, boundary, variables."
)
@click.option("--ops", is_flag=True, help="Every op type and how often.")
@click.option("--weights", is_flag=True, help="Bytes by format, and by layer and table.")
@click.option("--states", is_flag=True, help="Every variable, who updates it and who reads it.")
@click.option("--rt-info", is_flag=True, help="Every entry of the metadata.")
@click.option("--node", multiple=True, metavar="GLOB", help="Nodes whose names match, in full; repeatable.")
@click.option("--around", metavar="NODE", help="One node and its neighbours; a name, or #NUMBER.")
@click.option("--hops", type=click.IntRange(0), default=1, show_default=True, help="How far, with --around.")
@click.option(
    "--all", "everything", is_flag=True, help="The summary with every op type, state, file and rt_info entry."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "dot", "svg", "html"]),
    help="Default text. svg: layers and graft; html: a report to search; dot: the graft, or the nodes asked for.",
)
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write there, not to stdout.")
@click.option("--force", is_flag=True, help="Replace FILE.")
@json_option
@global_options
@click.pass_obj
def command(
    console: Console,
    /,
    path: Path,
    layers: bool,
    ops: bool,
    weights: bool,
    states: bool,
    rt_info: bool,
    node: tuple[str, ...],
    around: str | None,
    hops: int,
    everything: bool,
    form: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Show what a model, a package or a draft is made of.

    PATH is an .xml, a folder of IRs, a folder with target/ and draft/, the folder of a draft checkpoint, or an .onnx
    file. Without options a summary; with some, these sections only, in full. Weights are counted, never read.
    """
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form} exclude each other")
    form = "json" if as_json else form or "text"
    console.json = form == "json"
    asked = {
        "layers": layers,
        "ops": ops,
        "weights": weights,
        "states": states,
        "rt-info": rt_info,
        "nodes": bool(node) or around is not None,
    }
    sections = [section for section, wanted in asked.items() if wanted]
    with console.status() as status:
        status("starting")
        import json

        from ovgraft import inspection
        from ovgraft.cli.rendering import write
        from ovgraft.inspection.layout import Block, Line, plain

        request = inspection.Request(layers=layers, weights=weights, states=states, node=node, around=around, hops=hops)
        blocks: list[Block] = []
        if form in ("dot", "svg", "html"):
            text = _drawn(cast("Drawing", form), path, request, status)
        else:
            status(f"reading {path}")
            found = inspection.inspect(path, request)
            if form == "json":
                text = json.dumps(found.to_dict(), indent=2) + "\n"
            else:
                blocks = inspection.render_text(found, console.symbols, everything=everything, sections=sections)
                text = plain(blocks)
    if output is not None:
        write(output, text, force=force)
        console.say(Line((f"wrote {output}",)))
    elif form == "text":
        console.data(*blocks)
    else:
        console.raw(text)


def _drawn(drawing: Drawing, path: Path, request: Request, status: Status) -> str:
    from ovgraft import inspection
    from ovgraft.cli.rendering import check_format, drawn, full_request

    check_format(drawing, request)
    status(f"reading {path}")
    found = inspection.inspect(path, full_request(drawing, request))
    status(f"drawing {path}")
    return drawn(drawing, path, found, request)
