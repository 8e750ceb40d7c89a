"""DOT text for Graphviz: the graft picture, or the nodes that were asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ovgraft.inspection.layout import printable
from ovgraft.inspection.picture import Picture, Strip
from ovgraft.inspection.tree import Inspection
from ovgraft.inspection.tree_nodes import NodeInfo

_HEAD = [
    "  node [shape=box, style=filled, fillcolor=white, fontname=sans, fontsize=10];",
    "  edge [fontname=sans, fontsize=9];",
]
_FILL = {
    "attention": "#dbeafe",
    "sliding": "#ccfbf1",
    "recurrent": "#ede9fe",
    "table": "#e5e7eb",
    "fc": "#fef3c7",
    "head": "#fce7f3",
    "other": "#f9fafb",
}


def nodes_dot(inspection: Inspection) -> str:
    """The nodes an inspection was asked for, and the edges between them; a cluster a model when several have some."""
    models = [model for package in inspection.packages for model in package.models if model.nodes]
    lines = ["digraph nodes {", "  rankdir=TB;", *_HEAD]
    for at, model in enumerate(models):
        inner = _nodes(model.nodes, f"m{at}_")
        if len(models) > 1:
            lines += [f"  subgraph cluster_{at} {{", f"    label={_text(model.name)};", *inner, "  }"]
        else:
            lines += inner
    return "\n".join([*lines, "}"]) + "\n"


def _nodes(nodes: Sequence[NodeInfo], prefix: str) -> Iterator[str]:
    shown = {node.node.index for node in nodes}
    for node in nodes:
        label = _text(node.node.type, node.node.name, f"#{node.node.index}")
        stored = ", fillcolor=" + _text(_FILL["table"]) if node.bytes is not None else ""
        here = ", penwidth=3" if node.distance == 0 else ""
        yield f"  {prefix}{node.node.index} [label={label}{stored}{here}];"
    for node in nodes:
        for port, source in enumerate(node.inputs):
            if source.node is not None and source.node.index in shown:
                label = _text(f"{port}: {source.element_type} {source.shape}")
                yield f"  {prefix}{source.node.index} -> {prefix}{node.node.index} [label={label}];"


def picture_dot(picture: Picture) -> str:
    """The graft picture."""
    lines = ["digraph graft {", "  rankdir=TB;", *_HEAD]
    for strip, prefix in ((picture.target, "t"), (picture.draft, "d")):
        if strip is not None:
            lines += _strip(strip, prefix)
    style = "solid" if picture.exposed else "dashed"
    draft = picture.draft
    receivers = () if draft is None else draft.entries if draft.side is None else (draft.side,)
    into = [f"d{receiver}" for receiver in receivers] or ["out"]
    if picture.fc is not None:
        label = _text(picture.fc.title, *picture.fc.lines)
        lines.append(f"  fc [label={label}, fillcolor={_text(_FILL['fc'])}];")
        if draft is not None:
            lines += [f"  fc -> {name} [label={_text('hidden_states')}, constraint=false];" for name in into]
        into = ["fc"]
    elif picture.taps and picture.draft is None:
        lines.append(
            f"  out [label={_text('last_hidden_state', picture.tap_text)}, fillcolor={_text(_FILL['other'])}];"
        )
    lines += [f"  t{max(tap, 0)} -> {name} [style={style}, constraint=false];" for tap in picture.taps for name in into]
    if picture.target is not None and picture.draft is not None:
        for at, box in enumerate(picture.draft.boxes):
            if box.from_target:
                source = 0 if box.from_target == "embedding" else len(picture.target.boxes) - 1
                lines.append(f"  t{source} -> d{at} [style=dotted, label={_text('weights')}, constraint=false];")
    lines += [f"  // {printable(note)}" for note in picture.notes]
    return "\n".join([*lines, "}"]) + "\n"


def _strip(strip: Strip, prefix: str) -> Iterator[str]:
    yield f"  subgraph cluster_{prefix} {{"
    yield f"    label={_text(strip.name, strip.about)};"
    for at, box in enumerate(strip.boxes):
        yield f"    {prefix}{at} [label={_text(box.title, *box.lines)}, fillcolor={_text(_FILL[box.style])}];"
    for at in range(len(strip.boxes) - 1):
        for after in strip.entries if at == strip.side else (at + 1,):
            yield f"    {prefix}{at} -> {prefix}{after};"
    yield "  }"


def _text(*lines: str) -> str:
    """A quoted label of one or more lines; names are untrusted."""
    quoted = [printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(quoted) + '"'
