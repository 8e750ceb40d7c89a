"""``ovgraft passes``."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ovgraft.cli.console import Console
from ovgraft.cli.options import PATH, completes, global_options, json_option

if TYPE_CHECKING:
    from ovgraft.inspection.layout import Block
    from ovgraft.passbase import Pass
    from ovgraft.pipeline import OptionInfo, Preset

_STARTER = "dflash"
_TEXT_WIDTH = 100


_EXAMPLE = """\b
Example:
  ovgraft passes
  ovgraft passes expose-hidden-states
  ovgraft passes dflash --format toml > pipeline.toml
  ovgraft passes --explain move-fc qwen3 --draft qwen3_dflash
"""


@click.command("passes", epilog=_EXAMPLE)
@click.argument("name", required=False, shell_complete=completes("names"))
@click.argument("model", type=PATH, required=False)
@click.option("--explain", "explains", is_flag=True, help="Would NAME fire on MODEL, and why? Nothing is written.")
@click.option("--draft", type=PATH, help="The draft of MODEL, for --explain.")
@click.option("--presets", is_flag=True, help="List the ready-made pipelines only.")
@click.option(
    "--format", "form", type=click.Choice(["text", "toml"]), default="text", help="toml prints a starter for -c."
)
@json_option
@global_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    name: str | None,
    model: Path | None,
    explains: bool,
    draft: Path | None,
    presets: bool,
    form: str,
    as_json: bool,
) -> None:
    """List the passes, or explain one.

    NAME is a pass or a preset. With --explain it may be pipeline text, and MODEL is an .xml, a package folder, or a
    folder with target/ and draft/: the passes are run on a copy, and what they see, change or refuse is told, with the
    nodes.

    Exits with 1 when a pass would not fire.
    """
    console: Console = ctx.obj
    if explains:
        ctx.exit(_explain(console, name, model, draft, as_json))
    if model is not None or draft is not None:
        raise click.UsageError("a model is for --explain")
    if form == "toml":
        console.raw(_starter(name or _STARTER))
    elif name is None:
        _list(console, presets, as_json)
    elif (preset := _preset(name)) is not None:
        _show(console, as_json, {"preset": _preset_data(preset)}, _preset_blocks(preset))
    else:
        from ovgraft import pipeline

        cls = pipeline.get_pass(name)
        options = pipeline.describe_options(cls)
        _show(console, as_json, {"pass": _pass_data(cls, options)}, _pass_blocks(cls, options))


def _explain(console: Console, name: str | None, model: Path | None, draft: Path | None, as_json: bool) -> int:
    if name is None or model is None:
        raise click.UsageError("--explain expects a pass and a model")
    preset = _preset(name)
    with console.status() as status:
        status("starting")
        from ovgraft.cli.explaining import explain

        runs, data, blocks = explain(name if preset is None else preset.text, model, draft, status)
    if as_json:
        console.document(data)
    else:
        console.data(*blocks)
    return 0 if runs else 1


def _show(console: Console, /, as_json: bool, data: dict[str, Any], blocks: list[Block]) -> None:
    if as_json:
        console.document({"schema": 1, **data})
    else:
        console.data(*blocks)


def _list(console: Console, presets_only: bool, as_json: bool) -> None:
    from ovgraft import pipeline
    from ovgraft.inspection.layout import Cell, Line, Table

    presets = pipeline.list_presets()
    data: dict[str, Any] = {"presets": list(map(_preset_data, presets))}
    blocks: list[Block] = []
    if not presets_only:
        listed = pipeline.list_passes()
        keys = ("name", "summary", "distribution", "problem")
        data = {"passes": [{key: getattr(entry, key) for key in keys} for entry in listed], **data}
        rows = []
        for entry in listed:
            what = Cell(f"unusable: {entry.problem}", "bad") if entry.problem else Cell(entry.summary, "prose")
            owner = "" if entry.distribution == "ovgraft" else f"from {entry.distribution}"
            rows.append((Cell(entry.name, "title"), what, Cell(owner, "dim")))
        blocks += [Line((Cell("passes", "heading"),)), Table(rows), Line()]
    blocks.append(Line((Cell("presets", "heading"),)))
    blocks.append(Table([(Cell(preset.name, "title"), Cell(preset.summary, "prose")) for preset in presets]))
    blocks += [Line(), Line((Cell("ovgraft passes NAME explains a pass or a preset", "dim"),))]
    _show(console, as_json, data, blocks)


def _preset(name: str) -> Preset | None:
    from ovgraft import pipeline

    return next((preset for preset in pipeline.list_presets() if preset.name == name), None)


def _preset_data(preset: Preset) -> dict[str, str]:
    return {"name": preset.name, "pipeline": preset.text, "summary": preset.summary}


def _preset_blocks(preset: Preset) -> list[Block]:
    from ovgraft.inspection.layout import Cell, Line

    return [
        Line((Cell(preset.name, "title"), "  preset")),
        Line((preset.summary,), indent=2),
        Line(),
        Line((Cell("pipeline", "heading"),)),
        *(Line((text,), indent=2) for text in _lines_of(preset.text)),
    ]


def _lines_of(text: str) -> list[str]:
    """Pipeline text, one pass a line; each line but the last ends in its comma."""
    from ovgraft.pipeline.spec import read_items

    starts = [item.name_span[0] for item in read_items(text)]
    return [text[start:end].strip() for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _pass_data(cls: type[Pass], options: tuple[OptionInfo, ...]) -> dict[str, Any]:
    keys = ("key", "type", "default", "help", "example")
    return {
        "name": cls.name,
        "summary": cls.summary(),
        "description": _description(cls),
        "needs_draft": cls.needs_draft,
        "options": [{key: getattr(option, key) for key in keys} for option in options],
        "example": _example(cls, options),
    }


def _pass_blocks(cls: type[Pass], options: tuple[OptionInfo, ...]) -> list[Block]:
    from ovgraft.inspection.layout import Cell, Line, Table

    blocks: list[Block] = [
        Line((Cell(cls.name, "title"), "  needs a draft" if cls.needs_draft else "")),
        Line((cls.summary(),), indent=2),
    ]
    blocks += [Line((text,), indent=2 if text else 0) for text in _wrapped(_description(cls))]
    blocks += [Line(), Line((Cell("options", "heading"),))]
    rows: list[tuple[Cell | str, ...]] = []
    for option in options:
        default = "required" if option.default is None else f"default {option.default}"
        rows += [
            (Cell(option.key, "title"), Cell(f"{option.type}; {default}", "dim")),
            ("", Cell(option.help, "prose")),
        ]
    blocks.append(Table(rows) if rows else Line(("none",), indent=2))
    blocks += [Line(), Line((Cell("example", "heading"),)), Line((_example(cls, options),), indent=2)]
    return blocks


def _description(cls: type[Pass]) -> str:
    """The docstring after its first line, without reST quotes."""
    return inspect.cleandoc(cls.__doc__ or "").partition("\n")[2].strip().replace("``", "")


def _wrapped(text: str) -> list[str]:
    """Its paragraphs as lines that fit, each paragraph behind an empty line."""
    width = min(_TEXT_WIDTH, shutil.get_terminal_size((_TEXT_WIDTH, 0)).columns) - 2
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]
    return [line for paragraph in paragraphs for line in ("", *textwrap.wrap(paragraph, width, break_on_hyphens=False))]


def _example(cls: type[Pass], options: tuple[OptionInfo, ...]) -> str:
    """A command that runs the pass."""
    given = [f"{option.key}={option.example}" for option in options if option.example is not None]
    spec = f"'{cls.name}{{{' '.join(given)}}}'" if given else cls.name
    models = "--target TARGET --draft DRAFT" if cls.needs_draft else "MODEL"
    return f"ovgraft apply {models} -p {spec} -o OUT"


def _starter(name: str) -> str:
    """A TOML pipeline with every option in comments."""
    from ovgraft import pipeline

    preset = _preset(name)
    if preset is not None:
        items = list(pipeline.parse(preset.text))
        head = f"# {preset.summary}\n"
    else:
        items = []
        head = ""
    classes = [type(item) for item in items] or [pipeline.get_pass(name)]
    tables = [f'\n[[pass]]\nuse = "{cls.name}"\n{_commented(pipeline.describe_options(cls))}' for cls in classes]
    return f'{head}schema = 1\n# verify = "end"                 # none, end or each\n{"".join(tables)}'


def _commented(options: tuple[OptionInfo, ...]) -> str:
    lines = []
    for option in options:
        default = "required" if option.default is None else f"default {option.default}"
        lines.append(f"# {option.key}: {option.help} ({option.type}; {default})\n")
    return "".join(lines)
