"""Single sections in full, as people ask for them: layers, ops, weights, states, rt_info, nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence

from ovgraft.inspection.as_text import checkpoint_summary, format_table, heading, number, size, summary, where
from ovgraft.inspection.layout import Block, Cell, Line, Symbols, Table
from ovgraft.inspection.tree import CheckpointInfo, Inspection, ModelInfo
from ovgraft.inspection.tree_layers import AttentionInfo, CheckpointLayer, FormatInfo, LayerInfo, PartInfo
from ovgraft.inspection.tree_nodes import NodeInfo, OutputInfo, SourceInfo
from ovgraft.noderef import NodeRef

IN_FULL = 12
"""More nodes than these are listed, one a line."""

_INDENT = 2
_SHOWN_CONSUMERS = 8
_NO_WEIGHTS = frozenset({"i64", "i32", "boolean"})
_LEAST_SHARE = 0.01  # of a layer's bytes, for a format to be named

Row = Sequence[Cell | str]


def render_sections(inspection: Inspection, symbols: Symbols, sections: Collection[str]) -> list[Block]:
    """What was asked for, of every model."""
    blocks: list[Block] = []
    for package in inspection.packages:
        for model in package.models:
            if blocks:
                blocks.append(Line())
            title = package.role or package.name
            name = title if len(package.models) == 1 else f"{title} / {model.name}"
            blocks += [Line((Cell(name, "title"), "  ", model.title)), summary(model, symbols)]
            for section, render in _RENDERERS.items():
                if section in sections:
                    blocks += render(model, symbols)
        if package.checkpoint is not None:
            blocks += [Line()] if blocks else []
            blocks.append(Line((Cell(package.role or package.name, "title"), "  draft checkpoint")))
            blocks.append(checkpoint_summary(package.checkpoint, symbols))
            for section in _RENDERERS:
                if section in sections:
                    blocks += _of_checkpoint(section, package.checkpoint, symbols)
    return blocks


def heads_text(found: AttentionInfo | CheckpointLayer, symbols: Symbols) -> str:
    """Query heads, KV heads where they are fewer, and sizes, for example ``16/8 × 128``."""
    heads = str(found.heads or "?")
    if found.kv_heads not in (None, found.heads):
        heads += f"/{found.kv_heads}"
    sizes = str(found.head_size or "?")
    if found.value_head_size not in (None, found.head_size):
        sizes += f"/{found.value_head_size}"
    return f"{heads} {symbols.times} {sizes}"


def formats_text(formats: Sequence[FormatInfo]) -> str:
    """The element types that hold the weights, most bytes first; shapes and indices are not worth a word."""
    stored = [entry for entry in formats if entry.element_type not in _NO_WEIGHTS] or formats
    total = sum(entry.bytes for entry in stored)
    return "+".join(entry.element_type for entry in stored if entry.bytes >= _LEAST_SHARE * total)


def _layers(model: ModelInfo, symbols: Symbols) -> list[Block]:
    if model.structure_error:
        reasons = [Line((f"- {reason}",), indent=_INDENT) for reason in model.structure_error]
        return [*heading("layers"), Line((Cell("not found by structure", "bad"),), indent=_INDENT), *reasons]
    if not model.layers:
        return [*heading("layers"), _nothing("layers are told of decoders and drafts only")]
    blocks = model.kind == "dflash draft"
    sides = any(_sides(layer) for layer in model.layers)
    optional = [title for title, there in (("block", blocks), ("from the side", sides)) if there]
    header = ("#", "mixes by", "heads", "window", "sinks", *optional, "weights", "bytes", "boundary", "", "")
    layers = [_layer(layer, symbols, blocks=blocks, sides=sides) for layer in model.layers]
    table = Table(layers, header=header, align="><<><" + "<" * len(optional) + "<>")
    rows = [
        (str(layer.index), Cell(state, "name"), "" if state in layer.states else Cell(_owner(layer), "dim"))
        for layer in model.layers
        for state in _variables(layer)
    ]
    variables = [*heading("variables"), Table(rows, header=("#", "variable", ""), align="><")] if rows else []
    return [*heading("layers"), table, *variables]


def _direction(layer: LayerInfo) -> str:
    """Which rows of its block a row sees, of a draft."""
    found = [each.bidirectional for each in layer.details.attention] if layer.details else []
    return ", ".join(dict.fromkeys(direction_text(each) for each in found if each is not None))


def direction_text(bidirectional: bool) -> str:
    """Which rows of its block a row sees, in words."""
    return "both ways" if bidirectional else "causal"


def _sides(layer: LayerInfo) -> str:
    """Inputs whose rows enter from the side, not in the stream."""
    inputs = layer.details.inputs if layer.details else ()
    return ", ".join(inputs if layer.index else inputs[1:])


def _layer(layer: LayerInfo, symbols: Symbols, *, blocks: bool, sides: bool) -> Row:
    details = layer.details
    if details is None:
        return str(layer.index), layer.kind
    attention = details.attention
    return (
        str(layer.index),
        layer.kind,
        ", ".join(dict.fromkeys(heads_text(found, symbols) for found in attention)),
        ", ".join(dict.fromkeys(str(found.window or "") for found in attention)),
        "yes" if any(found.sinks for found in attention) else "",
        *([_direction(layer) or "?"] if blocks else []),
        *([_sides(layer)] if sides else []),
        formats_text(details.weights),
        size(details.bytes),
        *where(layer.producer, layer.output_index),
        f"{details.boundary.element_type} {details.boundary.shape}",
    )


def _variables(layer: LayerInfo) -> list[str]:
    """What the layer updates, then what else its attention reads."""
    found = list(layer.states)
    for attention in layer.details.attention if layer.details else ():
        found += [state for state in attention.states if state not in found]
    return found


def _owner(layer: LayerInfo) -> str:
    found = layer.details.attention if layer.details else ()
    owners = sorted({entry.state_layer for entry in found if entry.state_layer not in (None, layer.index)}, key=str)
    return f"updated by layer {', '.join(map(str, owners))}" if owners else ""


def _ops(model: ModelInfo, symbols: Symbols) -> list[Block]:
    if not model.op_counts:
        return [*heading("ops"), _nothing("no op")]
    rows = [
        (op_type, number(count), f"{100 * count / max(1, model.ops):.1f} %")
        for op_type, count in model.op_counts.items()
    ]
    return [*heading("ops"), Table(rows, align="<>>")]


def _weights(model: ModelInfo, symbols: Symbols) -> list[Block]:
    if not model.weights:
        return [*heading("weights"), _nothing("no constant")]
    tied = model.lm_head is not None and model.lm_head.tied
    note = [_nothing("lm_head reads the embedding's table")] if tied else []
    formats = format_table(model.weights, "constant")
    return [*heading("weights by format"), formats, *heading("weights by part"), _parts(model.parts), *note]


def _parts(parts: Sequence[PartInfo]) -> Table:
    total = sum(part.bytes for part in parts) or 1
    rows = [
        (_part(part), size(part.bytes), f"{100 * part.bytes / total:.1f} %", formats_text(part.formats))
        for part in parts
    ]
    return Table(rows, align="<>>")


def _part(part: PartInfo) -> str:
    return part.part if part.layer is None else f"layer {part.layer}"


def _states(model: ModelInfo, symbols: Symbols) -> list[Block]:
    tables = model.paging.tables if model.paging is not None else ()
    if tables:
        inputs: list[Row] = [
            (_known(table.layer), Cell(" ".join(table.names), "name"), table.shape, table.element_type)
            for table in tables
        ]
        return [*heading("cache inputs"), Table(inputs, header=("layer", "input", "shape", "type"), align=">")]
    if not model.states:
        return [*heading("states"), _nothing("stateless: no variable")]
    rows: list[Row] = []
    for state in model.states:
        others = [str(layer) for layer in state.readers if layer != state.layer]
        reads = f"also read by {', '.join(others)}" if others else ""
        rows.append((_known(state.layer), Cell(state.id, "name"), state.shape, state.element_type, reads))
    return [*heading("states"), Table(rows, header=("layer", "variable", "shape", "type", ""), align=">")]


def _known(layer: int | None) -> str:
    return "" if layer is None else str(layer)


def _of_checkpoint(section: str, checkpoint: CheckpointInfo, symbols: Symbols) -> list[Block]:
    if section == "layers":
        header = ("#", "mixes by", "heads", "window", "block", "weights", "bytes")
        rows = [
            (
                str(layer.index),
                layer.kind,
                heads_text(layer, symbols),
                str(layer.window or ""),
                direction_text(layer.bidirectional),
                formats_text(layer.weights),
                size(layer.bytes),
            )
            for layer in checkpoint.layers
        ]
        return [*heading("layers"), Table(rows, header=header, align="><<><<>")]
    if section == "weights":
        formats = format_table(checkpoint.weights, "tensor")
        return [*heading("weights by format"), formats, *heading("weights by part"), _parts(checkpoint.parts)]
    title = "rt_info" if section == "rt-info" else section
    return [*heading(title), _nothing("a checkpoint has no graph; build-draft makes one")]


def _rt_info(model: ModelInfo, symbols: Symbols) -> list[Block]:
    if not model.rt_info:
        return [*heading("rt_info"), _nothing("no entry")]
    rows = [(Cell(path, "dim"), Cell(text, "prose")) for path, text in model.rt_info.items()]
    return [*heading("rt_info"), Table(rows)]


def _nodes(model: ModelInfo, symbols: Symbols) -> list[Block]:
    if not model.nodes:
        return [*heading("nodes"), _nothing("no name matches")]
    hops = any(node.distance is not None for node in model.nodes)
    if not hops and len(model.nodes) <= IN_FULL:
        return [block for node in model.nodes for block in _node(node, symbols)]
    rows = [
        (
            f"#{node.node.index}",
            node.node.type,
            ", ".join(dict.fromkeys(f"{output.element_type} {output.shape}" for output in node.outputs)),
            Cell(node.node.name, "name"),
            " ".join(f"#{source.node.index}" for source in node.inputs if source.node is not None),
            "" if node.distance is None else "here" if node.distance == 0 else str(node.distance),
        )
        for node in model.nodes
    ]
    header = ("node", "type", "yields", "name", "from", "hops" if hops else "")
    table = Table(rows, header=header, align=">")
    centre = [block for node in model.nodes if node.distance == 0 for block in _node(node, symbols)]
    return [*centre, *heading(f"{number(len(rows))} nodes"), table]


def _node(node: NodeInfo, symbols: Symbols) -> list[Block]:
    title = Line((Cell(f"{node.node.type} ", "heading"), node.node.name, Cell(f"  #{node.node.index}", "dim")))
    rows: list[Row] = [(Cell("defined in", "dim"), node.opset)]
    if node.bytes is not None:
        rows.append((Cell("stored", "dim"), size(node.bytes)))
    rows += [(Cell("runs a body of", "dim"), f"{number(body)} ops") for body in node.bodies]
    rows += [(Cell(name, "dim"), Cell(json.dumps(value), "prose")) for name, value in node.attributes.items()]
    ports: list[Row] = [_input(i, source) for i, source in enumerate(node.inputs)]
    for i, output in enumerate(node.outputs):
        ports += _output(i, output)
    return [Line(), title, Table(rows), *([Table(ports)] if ports else [])]


def _input(i: int, source: SourceInfo) -> Row:
    label = Cell(f"in {i}", "dim")
    if source.node is None:
        return label, f"{source.element_type} {source.shape}".strip(), "", "nothing"
    return label, f"{source.element_type} {source.shape}".strip(), *_named(source.node, source.output_index)


def _output(i: int, output: OutputInfo) -> list[Row]:
    tensor = f"{output.element_type} {output.shape}".strip()
    shown = output.consumers[:_SHOWN_CONSUMERS]
    rows: list[Row] = []
    if output.names:
        rows.append((Cell(f"out {i}", "dim"), tensor, Cell("tensor", "dim"), Cell(", ".join(output.names), "name")))
    for consumer in shown:
        rows.append(("" if rows else Cell(f"out {i}", "dim"), "" if rows else tensor, *_named(consumer)))
    if len(output.consumers) > len(shown):
        rows.append(("", "", "", Cell(f"{len(output.consumers) - len(shown)} more", "dim")))
    return rows or [(Cell(f"out {i}", "dim"), tensor, "", "nothing reads it")]


def _named(node: NodeRef, output: int = 0) -> Row:
    return (Cell(node.type, "dim"), *where(node, output))


def _nothing(text: str) -> Line:
    return Line((Cell(text, "dim"),), indent=_INDENT)


_RENDERERS: dict[str, Callable[[ModelInfo, Symbols], list[Block]]] = {
    "layers": _layers,
    "ops": _ops,
    "weights": _weights,
    "states": _states,
    "rt-info": _rt_info,
    "nodes": _nodes,
}
