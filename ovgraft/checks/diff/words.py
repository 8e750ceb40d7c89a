"""Differences as a person would tell them: what a graft did by its records, the rest by op types."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import openvino as ov

from ovgraft import decoder, drafts, ir
from ovgraft.checks.diff.alignment import Alignment
from ovgraft.checks.diff.result import Difference, WeightDifference
from ovgraft.checks.ports import static_last
from ovgraft.drafts.contract import WEIGHT_DIGEST_KEY, Key, Port
from ovgraft.errors import OvgraftError, StructureError
from ovgraft.ir.graph import Graph

_NAMES = {"i8": "int8", "u8": "int8", "i4": "int4", "u4": "int4"}
_MOST_TYPES = 6
_RECORDS = {"/".join(key) for key in (Key.EXPOSED, Key.MOVED_FC, Key.APPLIED, Key.PIPELINE)}
_ANNOTATION = "/".join(Key.HIDDEN_STATES_DECODER_LAYERS)

Metadata = Mapping[str, tuple[str | None, str | None]]


def tell(
    found: Alignment,
    nodes: Sequence[Difference],
    ports: Sequence[str],
    metadata: Metadata,
    weights: Sequence[WeightDifference] | None,
) -> Iterator[str]:
    """One clause for each thing that happened between A and B.

    Args:
        found: The two graphs.
        nodes: Their differences.
        ports: What is different in inputs and outputs.
        metadata: rt_info that differs.
        weights: Constants with other bytes.
    """
    told = set()
    for port, text in (*_exposed(found, ports), *_moved_in(found), *_moved_out(found, metadata), *_attached(found)):
        told.add(port)
        yield text
    for text in ports:
        if not any(port and f" {port} " in f"{text} " for port in told):
            yield text
    yield from _annotated(metadata)
    yield from _ops(nodes)
    if weights:
        size = sum(weight.bytes for weight in weights)
        yield f"other values in {_count(len(weights), 'constant')} ({size:,} bytes)"
    others = [key for key in metadata if key not in _RECORDS and key != _ANNOTATION]
    for key in others[:_MOST_TYPES]:
        before, after = metadata[key]
        yield _entry(key, before, after)
    if len(others) > _MOST_TYPES:
        yield f"rt_info: {len(others) - _MOST_TYPES} more entries differ"
    yield from _passes(metadata)


def _exposed(found: Alignment, ports: Sequence[str]) -> Iterator[tuple[str, str]]:
    """An output of hidden states: which layers it holds."""
    if not any(text.startswith(f"output {Port.LAST_HIDDEN_STATE} added") for text in ports):
        return
    model = found.b.model
    record = _record(model, Key.EXPOSED)
    layers = record.get("layers") if record else None
    if layers:
        side = "before" if record and record.get("convention") == "input" else "after"
        plural = "s" if len(layers) > 1 else ""
        yield (
            Port.LAST_HIDDEN_STATE,
            (f"output {Port.LAST_HIDDEN_STATE} added {side} layer{plural} {', '.join(map(str, layers))}"),
        )
        return
    places = _places(found.b)
    if places:
        yield Port.LAST_HIDDEN_STATE, f"output {Port.LAST_HIDDEN_STATE} added: {', '.join(places)}"


def _places(graph: Graph) -> list[str]:
    """Where the states of ``last_hidden_state`` come from, when the model is a decoder that can be read."""
    result = drafts.find_result(graph.model, Port.LAST_HIDDEN_STATE)
    try:
        structure = decoder.read_decoder(graph.model, graph)
    except StructureError:
        return []
    if result is None:
        return []
    source = result.input_value(0)
    joined = source.get_node().input_values() if source.get_node().get_type_name() == "Concat" else [source]
    return [str(decoder.describe_output(structure, output)) for output in joined]


def _moved_in(found: Alignment) -> Iterator[tuple[str, str]]:
    """Weights that came from another model: they carry their digest."""
    kept = _digests(found.a)
    if "lm_head" in (_record(found.b.model, Key.APPLIED) or {}):
        return  # the product is the output layer, which its record tells of
    for j, i in enumerate(found.to_a):
        if i >= 0 or found.b.types[j] != "MatMul":
            continue
        for producer, port in found.b.inputs[j]:
            digest = ir.get_user_data(found.b.nodes[producer], WEIGHT_DIGEST_KEY)
            if digest is None or digest in kept:
                continue
            weight = ir.weight_root(found.b.output(producer, port))
            if weight is None:
                continue
            name = _short(found.b.names[j])
            kind = _NAMES.get(weight.format, weight.format)
            constants = _count(len(weight.constants), "constant")
            yield "", f"{found.b.types[j]} {name} moved in, {kind}, {constants}"


def _digests(graph: Graph) -> set[str]:
    return {
        digest
        for i, kind in enumerate(graph.types)
        if kind in ("Constant", "Convert", "Multiply", "Reshape", "Transpose")
        and (digest := ir.get_user_data(graph.nodes[i], WEIGHT_DIGEST_KEY)) is not None
    }


def _moved_out(found: Alignment, metadata: Metadata) -> Iterator[tuple[str, str]]:
    """The FC of a draft that lies in its target now."""
    key = "/".join(Key.MOVED_FC)
    parameters = [drafts.find_input(graph.model, Port.HIDDEN_STATES) for graph in (found.a, found.b)]
    if key not in metadata or metadata[key][0] is not None or None in parameters:
        return
    widths = [static_last(parameter.output(0)) for parameter in parameters if parameter is not None]
    record = _record(found.b.model, Key.MOVED_FC) or {}
    before = widths[0] or record.get("in_width")
    yield Port.HIDDEN_STATES, f"FC moved out: input {Port.HIDDEN_STATES} is {widths[1]} wide instead of {before}"


def _attached(found: Alignment) -> Iterator[tuple[str, str]]:
    """Tables of the target that a draft carries now."""
    before, after = (_record(graph.model, Key.APPLIED) or {} for graph in (found.a, found.b))
    for name in after:
        if name in before:
            continue
        if name == "embedding":
            yield Port.INPUT_IDS, f"the target's embedding attached: reads {Port.INPUT_IDS}{_table(found.b, 'Gather')}"
        elif name == "lm_head":
            yield Port.LOGITS, f"the target's output layer attached: gives {Port.LOGITS}{_table(found.b, 'MatMul')}"
        else:
            yield "", f"{name.replace('_', ' ')} applied"


def _table(graph: Graph, kind: str) -> str:
    """Type of the table that came along for an op."""
    for i in graph.find(kind):
        for producer, port in graph.inputs[i]:
            if ir.get_user_data(graph.nodes[producer], WEIGHT_DIGEST_KEY) is None:
                continue
            weight = ir.weight_root(graph.output(producer, port))
            if weight is not None:
                shape = " x ".join(map(str, weight.output.get_shape()))
                return f", {shape} {_NAMES.get(weight.format, weight.format)}"
    return ""


def _annotated(metadata: Metadata) -> Iterator[str]:
    if _ANNOTATION in metadata:
        before, after = metadata[_ANNOTATION]
        word = "added" if before is None else "removed" if after is None else "changed"
        yield f"rt_info {_ANNOTATION} {word}{_layer_count(after)}"


def _layer_count(text: str | None) -> str:
    try:
        layers = json.loads(text or "")["layers"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return f": {len(layers)} layers"


def _ops(nodes: Sequence[Difference]) -> Iterator[str]:
    """What is left, by op type."""
    for kind in ("removed", "added", "changed", "rewired"):
        types = Counter(
            (node.b or node.a).type  # type: ignore[union-attr]
            for node in nodes
            if node.kind == kind
        )
        if types:
            listed = [f"{count} {name}" for name, count in types.most_common(_MOST_TYPES)]
            more = len(types) - len(listed)
            rest = f" and {_count(more, 'other type')}" if more else ""
            yield f"{_count(sum(types.values()), 'node')} {kind}: {', '.join(listed)}{rest}"


def _passes(metadata: Metadata) -> Iterator[str]:
    key = "/".join(Key.PIPELINE)
    if key in metadata:
        before, after = metadata[key]
        if before is None or (after or "").startswith(f"{before},"):
            yield f"passes on record: {(after or '').removeprefix(f'{before},')}"
        else:
            yield f"passes on record: {before} there, {after or 'none'} here"


def _entry(key: str, before: str | None, after: str | None) -> str:
    if before is None:
        return f"rt_info {key} added: {_cut(after)}"
    if after is None:
        return f"rt_info {key} removed"
    return f"rt_info {key} is {_cut(after)} instead of {_cut(before)}"


def _cut(text: str | None) -> str:
    shown = text or "empty"
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _record(model: ov.Model, key: tuple[str, ...]) -> dict[str, Any] | None:
    try:
        return drafts.read_record(model, key)
    except OvgraftError:
        return None


def _short(name: str) -> str:
    """The telling part of an exporter's name: ``__module.fc/aten::linear/MatMul`` is ``fc``."""
    scope = name.removeprefix("draft/").removeprefix("__module.").partition("/")[0]
    return scope or name


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
