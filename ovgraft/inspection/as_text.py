"""The tree as lines and tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from ovgraft.inspection.layout import Block, Cell, Line, Style, Symbols, Table
from ovgraft.inspection.tree import CheckpointInfo, FactInfo, Inspection, ModelInfo, PackageInfo, PagingInfo
from ovgraft.inspection.tree_layers import FcInfo, FormatInfo, StateInfo, TableInfo
from ovgraft.noderef import NodeRef

SHOWN_OPS = 6
SHOWN_REASONS = 4
SHOWN_STATES = 6
_INDENT = 2


def render_text(
    inspection: Inspection, symbols: Symbols, *, everything: bool = False, sections: Collection[str] = ()
) -> list[Block]:
    """The whole inspection.

    Args:
        inspection: What was found.
        symbols: Characters the stream can hold.
        everything: Also every op type, state, file and rt_info entry.
        sections: Only these, in full: ``layers``, ``ops``, ``weights``, ``states``, ``rt-info``, ``nodes``; they must
            have been asked for when collecting. Without any, the summary.
    """
    if sections:
        from ovgraft.inspection.sections import render_sections

        return render_sections(inspection, symbols, sections)
    blocks: list[Block] = []
    for package in inspection.packages:
        if blocks:
            blocks.append(Line())
        blocks += _package(package, symbols, everything)
    if inspection.record is not None:
        blocks += heading("graft.json")
        blocks.append(_facts(_record_facts(inspection.record)))
    return blocks


def size(count: int) -> str:
    """Bytes for people, for example ``88.1 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def number(count: int) -> str:
    """A count with its thousands apart."""
    return f"{count:,}"


def _package(package: PackageInfo, symbols: Symbols, everything: bool) -> list[Block]:
    blocks: list[Block] = []
    title = package.role or package.name
    for at, model in enumerate(package.models):
        if at:
            blocks.append(Line())
        name = title if len(package.models) == 1 else f"{title} / {model.name}"
        beside = at > 0 and model.kind == "other" and not everything
        blocks += _beside(model, name, symbols) if beside else _model(model, name, symbols, everything)
    if package.checkpoint is not None:
        blocks += _checkpoint(package.checkpoint, title, symbols)
    if everything and package.files:
        blocks += heading("files")
        blocks.append(Table([(file.name, size(file.bytes)) for file in package.files], align="<>"))
    if package.problems:
        blocks += heading("problems", "bad")
        blocks += [Line((problem,), indent=_INDENT) for problem in package.problems]
    return blocks


def heading(text: str, style: Style = "heading") -> list[Block]:
    """The title of a section, with an empty line above."""
    return [Line(), Line((Cell(text, style),))]


def _model(model: ModelInfo, name: str, symbols: Symbols, everything: bool) -> list[Block]:
    blocks: list[Block] = [Line((Cell(name, "title"), "  ", model.title)), summary(model, symbols)]
    if model.why_not:
        blocks.append(Line((model.why_not,), indent=_INDENT))
    blocks += _ports(model)
    blocks += _layers(model)
    blocks += _mixing(model, symbols, everything)
    blocks += _tables(model, symbols)
    blocks += _weights(model.weights)
    if model.annotation is not None:
        blocks += _annotation(model)
    if model.paging is not None:
        blocks += _paging(model.paging)
    for title, facts in (("draft" if model.kind != "markov head" else "head", model.draft), ("graft", model.graft)):
        if facts:
            blocks += heading(title)
            blocks.append(_facts(facts))
    blocks += _ops(model, everything)
    if everything and model.rt_info:
        blocks += heading("rt_info")
        blocks.append(Table([(Cell(path, "dim"), Cell(text, "name")) for path, text in model.rt_info.items()]))
    return blocks


def _beside(model: ModelInfo, name: str, symbols: Symbols) -> list[Block]:
    """A model that travels with a package, such as a vision encoder: its ports tell enough."""
    return [Line((Cell(name, "title"), "  ", model.title)), summary(model, symbols), *_ports(model)]


def summary(model: ModelInfo, symbols: Symbols) -> Line:
    """Sizes of a model on one line."""
    parts = [layer_count(len(model.layers))] if model.layers else []
    if model.lm_head is not None:
        parts += [f"hidden {model.lm_head.width}", f"vocabulary {number(model.lm_head.vocab_size)}"]
    elif model.embedding is not None:
        parts += [f"hidden {model.embedding.width}", f"vocabulary {number(model.embedding.vocab_size)}"]
    elif model.width is not None:
        parts.append(f"hidden {model.width}")
    parts += [f"{number(model.ops)} ops", weight_total(model.weights)]
    return Line((Cell(f" {symbols.dot} ".join(parts), "dim"),), indent=_INDENT)


def checkpoint_summary(checkpoint: CheckpointInfo, symbols: Symbols) -> Line:
    """The same of a checkpoint."""
    parts = [layer_count(len(checkpoint.layers)), weight_total(checkpoint.weights)]
    return Line((Cell(f" {symbols.dot} ".join(parts), "dim"),), indent=_INDENT)


def layer_count(count: int) -> str:
    """How many layers, in words."""
    return f"{count} layer{'s' if count != 1 else ''}"


def weight_total(weights: Sequence[FormatInfo]) -> str:
    """How large all weights are, in words."""
    return f"{size(sum(entry.bytes for entry in weights))} of weights"


def _ports(model: ModelInfo) -> list[Block]:
    rows = [
        (Cell(side, "dim"), Cell(" ".join(port.names) or "(no name)", "name"), port.shape, port.element_type)
        for side, ports in (("in", model.inputs), ("out", model.outputs))
        for port in ports
    ]
    return [*heading("ports"), Table(rows)]


def _layers(model: ModelInfo) -> list[Block]:
    if model.structure_error:
        reasons = [Line((f"- {reason}",), indent=_INDENT) for reason in model.structure_error]
        return [*heading("layers"), Line((Cell("not found by structure", "bad"),), indent=_INDENT), *reasons]
    if not model.layers:
        return []
    rows: list[tuple[Cell | str, ...]] = [
        (str(layer.index), layer.kind, Cell(layer.producer.type, "dim"), *where(layer.producer, layer.output_index))
        for layer in model.layers
    ]
    if model.last_hidden_state is not None:
        last = model.last_hidden_state
        words = "into lm_head" if model.lm_head is not None else "out"
        rows.append(("", Cell(words, "dim"), Cell(last.type, "dim"), *where(last)))
    return [*heading("layers"), Table(rows, header=("#", "mixes by", "ends in", "", ""), align="><<<>")]


def where(node: NodeRef, output: int = 0) -> tuple[Cell, Cell]:
    """Two cells that say which node, and which output of it."""
    port = f" output {output}" if output else ""
    return Cell(node.name, "name"), Cell(f"#{node.index}{port}", "dim")


def _mixing(model: ModelInfo, symbols: Symbols, everything: bool) -> list[Block]:
    rows: list[tuple[Cell | str, ...]] = [
        (Cell("attention" if "Attention" in op_type else "recurrence", "dim"), f"{count} {symbols.times} {op_type}")
        for op_type, count in sorted(model.attention.items(), key=lambda item: "Attention" not in item[0])
    ]
    groups = Counter((state.shape, state.element_type) for state in model.states)
    rows += [
        (Cell("states", "dim"), f"{count} {symbols.times} {shape} {element_type}")
        for (shape, element_type), count in groups.items()
    ]
    if not rows:
        return []
    blocks = [*heading("attention and state"), Table(_without_repeats(rows))]
    if everything:
        blocks.append(Table([_state(state) for state in model.states], indent=2 * _INDENT))
    return blocks


def _state(state: StateInfo) -> tuple[Cell | str, ...]:
    return Cell(state.id, "name"), state.shape, state.element_type


def _without_repeats(rows: Iterable[Sequence[Cell | str]]) -> list[Sequence[Cell | str]]:
    """Labels once, where neighbouring rows have the same."""
    shown: list[Sequence[Cell | str]] = []
    last: Cell | str | None = None
    for row in rows:
        shown.append(("", *row[1:]) if row[0] == last else row)
        last = row[0]
    return shown


def _tables(model: ModelInfo, symbols: Symbols) -> list[Block]:
    rows = [
        _table(label, table, symbols)
        for label, table in (("embedding", model.embedding), ("lm_head", model.lm_head))
        if table is not None
    ]
    if model.fc is not None:
        rows.append(_fc(model.fc, symbols))
    return [*heading("tables"), Table(rows, align="<>>>")] if rows else []


def _fc(fc: FcInfo, symbols: Symbols) -> tuple[Cell | str, ...]:
    shape = f"{number(fc.out_width)} {symbols.times} {number(fc.in_width)}"
    bias = "with bias" if fc.bias else ""
    return Cell("fc", "dim"), shape, fc.format, size(fc.bytes), *where(fc.node), bias


def _table(label: str, table: TableInfo, symbols: Symbols) -> tuple[Cell | str, ...]:
    extras = [*(["tied"] if table.tied else []), *around(table)]
    shape = f"{number(table.vocab_size)} {symbols.times} {table.width}"
    return Cell(label, "dim"), shape, table.format, size(table.bytes), *where(table.node), ", ".join(extras)


def around(table: TableInfo) -> list[str]:
    """What happens to the rows of a table beside the product or the lookup."""
    scaled = [] if table.scale is None else [f"scaled by {table.scale:g}"]
    return [*scaled, *([f"then {', '.join(table.extras)}"] if table.extras else [])]


def _weights(weights: Sequence[FormatInfo]) -> list[Block]:
    return [*heading("weights"), format_table(weights, "constant")] if weights else []


def format_table(weights: Sequence[FormatInfo], unit: str) -> Table:
    """Bytes, share and number of weights by element type."""
    total = sum(entry.bytes for entry in weights) or 1
    rows = [
        (entry.element_type, size(entry.bytes), f"{100 * entry.bytes / total:.1f} %", _counted(entry.constants, unit))
        for entry in weights
    ]
    return Table(rows, align="<>>>")


def _counted(count: int, unit: str) -> str:
    return f"{number(count)} {unit}{'s' if count != 1 else ''}"


def _annotation(model: ModelInfo) -> list[Block]:
    found = model.annotation
    assert found is not None
    count = f"{found.layers} layers, " if found.layers else ""
    message = found.message or "rt_info hidden_states_decoder_layers is not there; annotate-hidden-states writes it"
    styles: dict[str, Style] = {"valid": "good", "invalid": "bad"}
    word = Cell(found.status, styles.get(found.status, "warn"))
    return [*heading("annotation"), Line((word, f"  {count}{message}"), indent=_INDENT)]


def _paging(paging: PagingInfo) -> list[Block]:
    words: dict[str, Style] = {"ready": "good", "paged": "good", "not ready": "warn"}
    if paging.status == "paged":
        counts = ", ".join(f"{number(count)} {op_type}" for op_type, count in paging.ops.items())
        kinds = Counter((port.names[0].partition(".")[0], port.shape, port.element_type) for port in paging.tables)
        rows = [(Cell(name, "name"), f"x {count}", shape, kind) for (name, shape, kind), count in kinds.items()]
        told = Line((Cell("paged", "good"), f"  {counts}"), indent=_INDENT)
        return [*heading("PagedAttention"), told, *([Table(rows)] if rows else [])]
    said = "-p paged-attention converts and checks it" if paging.status == "ready" else ""
    lines = [Line((Cell(paging.status, words[paging.status]), f"  {said}"), indent=_INDENT)]
    lines += [Line(("- ", str(reason)), indent=_INDENT) for reason in paging.reasons[:SHOWN_REASONS]]
    if len(paging.reasons) > SHOWN_REASONS:
        lines.append(Line((Cell(f"  {len(paging.reasons) - SHOWN_REASONS} more", "dim"),), indent=_INDENT))
    return [*heading("PagedAttention"), *lines]


def _ops(model: ModelInfo, everything: bool) -> list[Block]:
    shown = list(model.op_counts.items())
    if everything:
        return [*heading("ops"), Table([(op_type, number(count)) for op_type, count in shown], align="<>")]
    text = ", ".join(f"{op_type} {number(count)}" for op_type, count in shown[:SHOWN_OPS])
    rest = len(shown) - SHOWN_OPS
    more = f", {rest} more types" if rest > 0 else ""
    return [*heading("ops"), Line((text, Cell(more, "dim")), indent=_INDENT)]


def _facts(facts: Sequence[FactInfo]) -> Table:
    return Table([(Cell(fact.name, "dim"), Cell(fact.value, "prose"), Cell(fact.source, "aside")) for fact in facts])


def _checkpoint(checkpoint: CheckpointInfo, title: str, symbols: Symbols) -> list[Block]:
    blocks: list[Block] = [
        Line((Cell(title, "title"), "  draft checkpoint")),
        checkpoint_summary(checkpoint, symbols),
        *heading("spec"),
        _facts(checkpoint.facts),
        *heading("weights"),
        format_table(checkpoint.weights, "tensor"),
    ]
    if checkpoint.warnings:
        blocks += heading("warnings")
        blocks += [Line((Cell(warning, "warn"),), indent=_INDENT) for warning in checkpoint.warnings]
    return blocks


def _record_facts(record: dict[str, object]) -> list[FactInfo]:
    """Names and texts of the record; nested parts are for the JSON form."""
    return [FactInfo(key, str(value), "") for key, value in record.items() if isinstance(value, (str, int, float))]
