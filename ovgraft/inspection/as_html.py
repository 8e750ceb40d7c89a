"""One HTML file that tells all of an inspection: no network, no other file; every name is escaped by jinja2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ovgraft
from ovgraft.inspection.as_svg import picture_svg
from ovgraft.inspection.as_text import layer_count, number, size, weight_total
from ovgraft.inspection.boxes import LayerLook, Style, look_of, look_of_stored
from ovgraft.inspection.layout import UNICODE, printable
from ovgraft.inspection.picture import Picture, picture
from ovgraft.inspection.sections import formats_text
from ovgraft.inspection.tree import CheckpointInfo, Inspection, ModelInfo, PackageInfo
from ovgraft.inspection.tree_layers import FormatInfo, LayerInfo, TableInfo
from ovgraft.inspection.tree_nodes import GraphInfo

_FOLDER = Path(__file__).parent / "report"
_LEAST_HEIGHT = 4  # per cent of the strip, so that a layer without weights is still there
_MEANINGS = {
    "attention": "attention",
    "sliding": "sliding window",
    "recurrent": "other state",
    "table": "embedding, lm_head",
    "fc": "FC",
    "head": "Markov head, candidate selector",
    "tap": "read by the draft",
}


def render_html(inspection: Inspection, title: str | None = None) -> str:
    """The report.

    Args:
        inspection: Collected with layers, weights, states and graph.
        title: What to call it; the names of the packages when None.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    drawn = picture(inspection, UNICODE)
    tapped = _tapped(drawn)
    models = [(package, model) for package in inspection.packages for model in package.models]
    target = next((model for _, model in models if model.kind == "decoder"), None)
    names = [package.name for package in inspection.packages]
    return environment.get_template("report.html.j2").render(
        title=" + ".join(dict.fromkeys(names)) if title is None else title,
        notes=[
            *(drawn.notes if drawn else ()),
            *(problem for package in inspection.packages for problem in package.problems),
        ],
        css=Markup((_FOLDER / "report.css").read_text("utf-8")),
        js=Markup((_FOLDER / "report.js").read_text("utf-8")),
        wide=Markup(picture_svg(drawn)) if drawn else "",
        narrow=Markup(picture_svg(drawn, stacked=True)) if drawn else "",
        both=drawn is not None and drawn.target is not None and drawn.draft is not None,
        models=[
            _model(number, package, model, tapped if model is target else frozenset())
            for number, (package, model) in enumerate(models)
        ],
        checkpoints=[_checkpoint(package.checkpoint) for package in inspection.packages if package.checkpoint],
        data=[_columns(model) for _, model in models],
        version=ovgraft.__version__,
    )


def _tapped(drawn: Picture | None) -> frozenset[int]:
    if drawn is None or drawn.target is None:
        return frozenset()
    return frozenset(drawn.target.boxes[tap].layers[-1] for tap in drawn.taps if drawn.target.boxes[tap].layers)


def _model(at: int, package: PackageInfo, model: ModelInfo, tapped: frozenset[int]) -> dict[str, Any]:
    title = package.role or package.name
    about = [layer_count(len(model.layers))] if model.layers else []
    about += [f"{number(model.ops)} ops", weight_total(model.weights)]
    cells = _cells(model, tapped)
    return {
        "number": at,
        "title": title if len(package.models) == 1 else f"{title} / {model.name}",
        "kind": model.title,
        "about": " · ".join(about),
        "reasons": [*([model.why_not] if model.why_not else []), *map(str, model.structure_error)],
        "cells": cells,
        "legend": _legend(cells),
        "ports": [*(("in", port) for port in model.inputs), *(("out", port) for port in model.outputs)],
        "weights": _weights(model.weights),
        "facts": [(heading, facts) for heading, facts in _facts(model) if facts],
    }


def _checkpoint(checkpoint: CheckpointInfo) -> dict[str, Any]:
    cells = _stored_cells(checkpoint)
    return {
        "about": " · ".join([layer_count(len(checkpoint.layers)), weight_total(checkpoint.weights)]),
        "cells": cells,
        "legend": _legend(cells),
        "weights": _weights(checkpoint.weights),
        "facts": checkpoint.facts,
    }


def _weights(weights: Sequence[FormatInfo]) -> list[dict[str, Any]]:
    total = sum(entry.bytes for entry in weights) or 1
    return [
        {
            "name": entry.element_type,
            "size": size(entry.bytes),
            "share": f"{100 * entry.bytes / total:.1f} %",
            "percent": round(100 * entry.bytes / total, 1),
        }
        for entry in weights
    ]


def _facts(model: ModelInfo) -> list[tuple[str, list[tuple[str, str]]]]:
    state = []
    for op_type, count in model.attention.items():
        state.append((op_type, number(count)))
    if model.states:
        state.append(("states", number(len(model.states))))
    if model.annotation is not None:
        state.append(("annotation", f"{model.annotation.status} {model.annotation.message}".strip()))
    if model.paging is not None:
        reasons = "; ".join(reason.message for reason in model.paging.reasons[:3])
        state.append(("PagedAttention", f"{model.paging.status}{': ' if reasons else ''}{reasons}"))
    return [
        ("Attention and state", state),
        ("Draft", [(fact.name, fact.value) for fact in model.draft]),
        ("Grafted", [(fact.name, fact.value) for fact in model.graft]),
        ("Ops", [(op_type, number(count)) for op_type, count in list(model.op_counts.items())[:10]]),
    ]


@dataclass(frozen=True)
class _Bar:
    """A layer or a table.

    Attributes:
        style: See :data:`ovgraft.inspection.boxes.Style`.
        text: All that is known of it.
        bytes: Its weights.
        node: Where to look in the node table; None without a graph.
        tapped: Its output is read by the draft.
    """

    style: Style
    text: str
    bytes: int
    node: int | None = None
    tapped: bool = False


def _cells(model: ModelInfo, tapped: frozenset[int]) -> list[dict[str, Any]]:
    """One bar a layer, the tables at both ends."""
    if not model.layers:
        return []
    bars: list[_Bar] = []
    if model.fc is not None:
        fc = model.fc
        bars.append(
            _Bar("fc", f"FC: {fc.in_width} → {fc.out_width}, {fc.format}, {size(fc.bytes)}", fc.bytes, fc.node.index)
        )
    if model.embedding is not None:
        bars.append(_table("embedding", model.embedding))
    bars += [_bar(layer, layer.index in tapped) for layer in model.layers]
    if model.lm_head is not None and not model.lm_head.tied:
        bars.append(_table("lm_head", model.lm_head))
    return _drawn(bars)


def _stored_cells(checkpoint: CheckpointInfo) -> list[dict[str, Any]]:
    """The same of a checkpoint."""
    styles: dict[str, Style] = {"fc": "fc", "embedding": "table", "lm_head": "table"}
    styles |= {"markov head": "head", "candidate selector": "head"}
    layers = [
        _Bar(
            "sliding" if layer.window else "attention", _told(layer.index, look_of_stored(layer, UNICODE)), layer.bytes
        )
        for layer in checkpoint.layers
    ]
    parts = {part.part: part for part in checkpoint.parts}
    bars = {
        name: [
            _Bar(style, f"{name}: {formats_text(parts[name].formats)}, {size(parts[name].bytes)}", parts[name].bytes)
        ]
        for name, style in styles.items()
        if name in parts
    }
    before, behind = ("fc", "embedding"), ("lm_head", "markov head", "candidate selector")
    ordered = [bars.get(name, []) for name in before] + [layers] + [bars.get(name, []) for name in behind]
    return _drawn([bar for group in ordered for bar in group])


def _drawn(bars: Sequence[_Bar]) -> list[dict[str, Any]]:
    highest = max((bar.bytes for bar in bars), default=0) or 1
    return [
        {
            "style": bar.style,
            "text": bar.text,
            "height": max(_LEAST_HEIGHT, round(100 * bar.bytes / highest, 1)),
            "node": "" if bar.node is None else bar.node,
            "tapped": bar.tapped,
        }
        for bar in bars
    ]


def _legend(cells: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Colours that occur, and what they mean."""
    there = {cell["style"] for cell in cells} | ({"tap"} if any(cell["tapped"] for cell in cells) else set())
    return [(style, meaning) for style, meaning in _MEANINGS.items() if style in there]


def _table(label: str, table: TableInfo) -> _Bar:
    text = f"{label}: {number(table.vocab_size)} × {table.width}, {table.format}, {size(table.bytes)}"
    return _Bar("table", text, table.bytes, table.node.index)


def _bar(layer: LayerInfo, tapped: bool) -> _Bar:
    look = look_of(layer, UNICODE)
    tail = [*(["read by the draft"] if tapped else []), f"ends in {layer.producer}"]
    return _Bar(look.style, ", ".join([_told(layer.index, look), *tail]), look.bytes, layer.producer.index, tapped)


def _told(index: int, look: LayerLook) -> str:
    return ", ".join(part for part in (f"layer {index}: {look.text}", look.more, size(look.bytes)) if part)


def _columns(model: ModelInfo) -> dict[str, Any]:
    """Nodes and edges in few bytes: each prefix, type and shape once, edges as distances."""
    graph = model.graph or GraphInfo((), (), (), ())
    prefixes: dict[str, int] = {}
    names = []
    for name in graph.names:
        head, slash, tail = printable(name).rpartition("/")
        names.append((prefixes.setdefault(head + slash, len(prefixes)), tail))
    types, type_ = _numbered(graph.types)
    outputs, output = _numbered(graph.outputs)
    asked = next((node.node.index for node in model.nodes if node.distance == 0), None)
    last = model.lm_head.node.index if model.lm_head else max(len(names) - 1, 0)
    return {
        "prefixes": list(prefixes),
        "names": names,
        "types": types,
        "type": type_,
        "outputs": outputs,
        "output": output,
        "inputs": [[i - producer for producer in producers] for i, producers in enumerate(graph.inputs)],
        "start": last if asked is None else asked,
    }


def _numbered(values: Sequence[str]) -> tuple[list[str], list[int]]:
    """Each value once, and which one every entry has."""
    numbers: dict[str, int] = {}
    entries = [numbers.setdefault(value, len(numbers)) for value in values]
    return list(map(printable, numbers)), entries
