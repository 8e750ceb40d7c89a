"""One HTML file that tells all of an inspection: no network, no other file; every name is escaped by jinja2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ovgraft
from ovgraft.inspection.as_svg import picture_svg
from ovgraft.inspection.as_text import number, size
from ovgraft.inspection.layout import UNICODE, printable
from ovgraft.inspection.picture import Picture, picture
from ovgraft.inspection.sections import formats_text, heads_text
from ovgraft.inspection.tree import Inspection, LayerInfo, ModelInfo, PackageInfo
from ovgraft.inspection.tree_nodes import GraphInfo

_FOLDER = Path(__file__).parent / "report"
_LEAST_HEIGHT = 4  # per cent of the strip, so that a layer without weights is still there


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
    names = [package.name for package in inspection.packages]
    return environment.get_template("report.html.j2").render(
        title=" + ".join(dict.fromkeys(names)) if title is None else title,
        notes=[
            *(drawn.notes if drawn else ()),
            *(problem for package in inspection.packages for problem in package.problems),
        ],
        css=Markup((_FOLDER / "report.css").read_text("utf-8")),
        js=Markup((_FOLDER / "report.js").read_text("utf-8")),
        svg=Markup(picture_svg(drawn)) if drawn else "",
        both=drawn is not None and drawn.target is not None and drawn.draft is not None,
        models=[_model(number, package, model, tapped) for number, (package, model) in enumerate(models)],
        checkpoints=[package.checkpoint.facts for package in inspection.packages if package.checkpoint],
        data=[_columns(model) for _, model in models],
        version=ovgraft.__version__,
    )


def _tapped(drawn: Picture | None) -> frozenset[int]:
    if drawn is None or drawn.target is None:
        return frozenset()
    return frozenset(drawn.target.boxes[tap].layers[-1] for tap in drawn.taps if drawn.target.boxes[tap].layers)


def _model(at: int, package: PackageInfo, model: ModelInfo, tapped: frozenset[int]) -> dict[str, Any]:
    title = package.role or package.name
    total = sum(entry.bytes for entry in model.weights) or 1
    about = [f"{len(model.layers)} layers"] if model.layers else []
    about += [f"{number(model.ops)} ops", f"{size(total)} of weights"]
    return {
        "number": at,
        "title": title if len(package.models) == 1 else f"{title} / {model.name}",
        "kind": model.kind,
        "about": " · ".join(about),
        "reasons": [*([model.why_not] if model.why_not else []), *map(str, model.structure_error)],
        "cells": _cells(model, tapped),
        "tapped": bool(tapped) and bool(model.layers),
        "ports": [*(("in", port) for port in model.inputs), *(("out", port) for port in model.outputs)],
        "weights": [
            {
                "name": entry.element_type,
                "size": size(entry.bytes),
                "share": f"{100 * entry.bytes / total:.1f} %",
                "percent": round(100 * entry.bytes / total, 1),
            }
            for entry in model.weights
        ],
        "facts": [(heading, facts) for heading, facts in _facts(model) if facts],
    }


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


def _cells(model: ModelInfo, tapped: frozenset[int]) -> list[dict[str, Any]]:
    """One bar a layer, the tables at both ends."""
    if not model.layers:
        return []
    bars: list[tuple[str, str, int, int, bool]] = []
    for label, table in (("embedding", model.embedding), ("lm_head", model.lm_head)):
        if table is not None and not table.tied:
            text = f"{label}: {number(table.vocab_size)} × {table.width}, {table.format}, {size(table.bytes)}"
            bars.append(("table", text, table.bytes, table.node.index, False))
    at = 1 if model.embedding is not None else 0
    bars[at:at] = [_bar(layer, layer.index in tapped) for layer in model.layers]
    highest = max(weights for _, _, weights, _, _ in bars) or 1
    return [
        {
            "style": style,
            "text": text,
            "height": max(_LEAST_HEIGHT, round(100 * weights / highest, 1)),
            "node": node,
            "tapped": mark,
        }
        for style, text, weights, node, mark in bars
    ]


def _bar(layer: LayerInfo, mark: bool) -> tuple[str, str, int, int, bool]:
    parts = [f"layer {layer.index}: {layer.kind.replace('_', ' ')}"]
    style = "" if layer.kind == "attention" else "recurrent"
    weights = 0
    if layer.details is not None:
        for found in layer.details.attention:
            parts.append(heads_text(found, UNICODE))
            if found.window:
                parts.append(f"window {found.window}")
                style = style or "sliding"
            if found.sinks:
                parts.append("sinks")
        weights = layer.details.bytes
        parts += [formats_text(layer.details.weights), size(weights)]
    if mark:
        parts.append("read by the draft")
    return (
        style,
        ", ".join([*(part for part in parts if part), f"ends in {layer.producer}"]),
        weights,
        layer.producer.index,
        mark,
    )


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
