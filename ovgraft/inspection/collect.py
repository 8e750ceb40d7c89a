"""Reads models into the tree. No weight byte is read; renderers never see a live model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import openvino as ov

from ovgraft import decoder, drafts, ir
from ovgraft.decoder.kinds import layer_of_nodes
from ovgraft.drafts.contract import Key, Port
from ovgraft.drafts.kinds import model_kind, port_names
from ovgraft.errors import OvgraftError, Reason
from ovgraft.inspection.details import layer_details, port
from ovgraft.inspection.formats import formats_of
from ovgraft.inspection.nodes import collect_graph, collect_nodes
from ovgraft.inspection.parts import Part, constants_by_part, part_weights, read_flow
from ovgraft.inspection.request import SUMMARY, Request
from ovgraft.inspection.structure import DRAFTS, Structure, read_structure
from ovgraft.inspection.tree import AnnotationInfo, ModelInfo, PagingInfo
from ovgraft.inspection.tree_layers import CacheInfo, FcInfo, LayerDetails, LayerInfo, StateInfo, TableInfo

_TABLE = re.compile(r"^(key_cache|value_cache|\w+_state_table)\.\d+$")

_MIXERS = frozenset({"ScaledDotProductAttention", "PagedAttentionExtension", "Loop", "TensorIterator"})


def collect_model(model: ov.Model, name: str, request: Request = SUMMARY) -> ModelInfo:
    """Everything the graph and the metadata of one IR say.

    Args:
        model: The model; not changed.
        name: What to call it.
        request: What is wanted beyond the summary.

    Raises:
        SpecError: The request names one node and several are called so.
    """
    kind = model_kind(model)
    graph = ir.Graph(model)
    structure = read_structure(model, graph, kind)
    stack, embedding = structure.stack, structure.embedding
    repeated = structure.repeated(graph)
    parts: dict[Part, list[int]] = {}
    details: list[LayerDetails] = []
    if request.layers or request.weights:
        flow = read_flow(graph, structure)
        parts = constants_by_part(graph, structure, flow)
        if stack is not None and request.layers:
            details = layer_details(stack, flow, parts, in_blocks=kind == "dflash draft")
    return ModelInfo(
        name=name,
        kind=kind,
        ops=len(graph),
        inputs=tuple(map(port, model.inputs)),
        outputs=tuple(map(port, model.outputs)),
        op_counts=dict(Counter(graph.types).most_common()),
        attention=_attention(graph, stack),
        states=_states(model, stack if request.states else None),
        weights=formats_of(graph, [i for i in graph.find("Constant") if i not in repeated]),
        rt_info={"/".join(path): text for path, text in ir.flatten(model).items()},
        why_not=_why_not(model) if kind == "other" else "",
        layers=_layers(stack, details) if stack else (),
        embedding=_embedding(graph, embedding) if embedding else None,
        lm_head=_lm_head(graph, structure) if Port.LOGITS in port_names(model.outputs) else None,
        last_hidden_state=graph.ref(graph.index(stack.sink.get_node())) if stack else None,
        structure_error=structure.reasons,
        width=_width(stack) if stack else None,
        fc=_fc(graph, structure.fc) if structure.fc else None,
        annotation=_annotation(model, stack) if kind == "decoder" else None,
        paging=_paging(graph, kind, stack if request.states else None) if kind in ("decoder", *DRAFTS) else None,
        parts=part_weights(graph, parts) if request.weights else (),
        nodes=collect_nodes(graph, request),
        graph=collect_graph(graph) if request.graph else None,
    )


def _states(model: ov.Model, stack: decoder.LayerStack | None) -> tuple[StateInfo, ...]:
    if stack is not None:
        found = [
            StateInfo(state.variable_id, state.element_type, state.shape, state.layer, state.readers)
            for state in decoder.read_states(stack)
        ]
    else:
        infos = [variable.info for variable in model.get_variables()]
        found = [StateInfo(info.variable_id, info.data_type.get_type_name(), str(info.data_shape)) for info in infos]
    return tuple(sorted(found, key=_natural_order))


def _natural_order(state: StateInfo) -> tuple[tuple[int, int | str], ...]:
    """``past.2`` before ``past.10``; OpenVINO keeps variables in no order."""
    parts = re.split(r"(\d+)", state.id)
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts)


def _layers(stack: decoder.LayerStack, details: Sequence[LayerDetails]) -> tuple[LayerInfo, ...]:
    graph = stack.graph
    return tuple(
        LayerInfo(
            index=layer.index,
            kind=layer.kind,
            producer=graph.ref(graph.index(layer.output.get_node())),
            output_index=layer.output.get_index(),
            attention=tuple(graph.ref(graph.index(node)) for node in layer.attention),
            states=layer.states,
            details=details[layer.index] if details else None,
        )
        for layer in stack.layers
    )


def _width(stack: decoder.LayerStack) -> int | None:
    last = stack.layers[-1].output.get_partial_shape()[-1]
    return int(last.get_length()) if last.is_static else None


def _attention(graph: ir.Graph, stack: decoder.LayerStack | None) -> dict[str, int]:
    """What mixes positions: as the layers say, else by op type alone."""
    if stack is None:
        types = [op_type for op_type in graph.types if op_type in _MIXERS]
    else:
        types = [node.get_type_name() for layer in stack.layers for node in layer.attention]
    return dict(Counter(types).most_common())


def _paging(graph: ir.Graph, kind: str, stack: decoder.LayerStack | None) -> PagingInfo:
    """Whether paged-attention has a chance; the numbers are known only after converting."""
    paged = Counter(op_type for op_type in graph.types if op_type in decoder.PAGED_TYPES)
    if paged:
        return PagingInfo("paged", ops=dict(paged.most_common()), tables=_tables(graph, stack))
    reasons = tuple(decoder.readiness(graph))
    if kind == "dflash draft" and {reason.code for reason in reasons} == {"unmatched-state"}:
        text = "context and block rows lie on two axes; per-row-draft puts them on one, then it converts"
        reasons = (Reason("two-row-axes", text),)
    return PagingInfo("not ready" if reasons else "ready", reasons)


def _tables(graph: ir.Graph, stack: decoder.LayerStack | None) -> tuple[CacheInfo, ...]:
    """Inputs that hold caches and states, each with the layer of its readers."""
    levels = layer_of_nodes(graph, [_value(graph, layer.entry) for layer in stack.layers]) if stack else []
    tables = []
    for entry in graph.model.inputs:
        if any(_TABLE.search(name) for name in entry.names):
            readers = graph.consumers[graph.index(entry.get_node())]
            layers = {levels[reader] for _, reader, _ in readers} if levels else set()
            info = port(entry)
            owner = layers.pop() if len(layers) == 1 else -1
            tables.append(CacheInfo(info.names, info.element_type, info.shape, owner if owner >= 0 else None))
    return tuple(tables)


def _value(graph: ir.Graph, output: ov.Output) -> tuple[int, int]:
    return graph.index(output.get_node()), output.get_index()


def _fc(graph: ir.Graph, fc: drafts.HiddenStateFc) -> FcInfo:
    return FcInfo(
        node=graph.ref(graph.index(fc.matmul)),
        in_width=fc.in_width,
        out_width=fc.out_width,
        format=fc.weight.format,
        bytes=fc.weight.bytes + (fc.bias.bytes if fc.bias is not None else 0),
        bias=fc.bias is not None,
    )


def _embedding(graph: ir.Graph, embedding: decoder.Embedding) -> TableInfo | None:
    weight = ir.weight_root(embedding.table)
    if weight is None:
        return None
    return TableInfo(
        node=graph.ref(graph.index(embedding.gather)),
        vocab_size=embedding.vocab_size,
        width=embedding.width,
        format=weight.format,
        bytes=weight.bytes,
        scale=embedding.scale,
    )


def _lm_head(graph: ir.Graph, structure: Structure) -> TableInfo | None:
    head = structure.lm_head
    weight = ir.weight_root(head.weight) if head is not None else None
    if head is None or weight is None:
        return None
    return TableInfo(
        node=graph.ref(graph.index(head.matmul)),
        vocab_size=head.vocab_size,
        width=head.width,
        format=weight.format,
        bytes=weight.bytes,
        extras=tuple(node.get_type_name() for node in head.post_ops),
        tied=structure.tied,
    )


def _annotation(model: ov.Model, stack: decoder.LayerStack | None) -> AnnotationInfo:
    text = ir.get_text(model, Key.HIDDEN_STATES_DECODER_LAYERS)
    if text is None:
        return AnnotationInfo("absent")
    try:
        layers = len(decoder.parse_annotation(text))
        if not isinstance(stack, decoder.Decoder):
            return AnnotationInfo("unchecked", layers, "the structure does not tell the layers")
        decoder.check_annotation(model, stack)
    except OvgraftError as error:
        reasons = "; ".join(reason.message for reason in error.reasons)
        return AnnotationInfo("invalid", message=f"{error}{': ' if reasons else ''}{reasons}")
    return AnnotationInfo("valid", layers, "agrees with the structure")


def _why_not(model: ov.Model) -> str:
    outputs, inputs = port_names(model.outputs), port_names(model.inputs)
    missing = []
    if Port.LOGITS not in outputs:
        missing.append("no output logits")
    if not inputs & {Port.INPUT_IDS, Port.INPUTS_EMBEDS}:
        missing.append("no input input_ids or inputs_embeds")
    if Port.HIDDEN_STATES not in inputs:
        missing.append("no input hidden_states")
    return "neither a language model nor a draft: " + ", ".join(missing)
