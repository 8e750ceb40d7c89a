"""Find the layers of a decoder by the shape of its graph; no name is looked at.

The residual stream runs from the token values to lm_head. Values that every way passes through cut it into steps: one
for each branch that is added back (attention, MLP), and light ones (norms, scales, adds of other inputs) between. A
step that holds attention or meets a state begins a layer; the steps up to the next such step complete it.

What the graph can't decide is refused: layers tied by skips across them, several parallel streams, layers of unlike
numbers of branches (a branch without attention may be a layer of its own), work between two layers that belongs to
neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, takewhile

import openvino as ov

from ovgraft.decoder.dataflow import Origins, Stream, Value, origins, stream
from ovgraft.decoder.kinds import RECURRENCE, layer_kind, state_owners
from ovgraft.decoder.steps import StateReads, Step, is_mark, state_reads, steps
from ovgraft.decoder.types import Layer
from ovgraft.errors import Reason, StructureError
from ovgraft.ir.graph import Graph
from ovgraft.noderef import NodeRef


@dataclass(frozen=True, slots=True)
class _Chain:
    """Steps from source to sink, and what is needed to judge them."""

    steps: list[Step]
    kinds: dict[int, str]  # by number of the step, for steps with marks
    reads: StateReads


@dataclass(slots=True)
class _Span:
    """The steps of one layer."""

    branches: list[Step]  # up to the last residual step; the first has the marks
    tail: list[Step]  # light steps behind them, still of the layer
    rest: list[Step]  # of the last layer: norm, projection, all up to the sink
    kind: str


def find_layers(graph: Graph, source: ov.Output, sink: ov.Output, values: Origins | None = None) -> tuple[Layer, ...]:
    """Find the layers between two values.

    Args:
        graph: The model.
        source: Where token values enter: the embedding's output, or a floating-point parameter.
        sink: What enters lm_head.
        values: What :func:`~ovgraft.decoder.dataflow.origins` says of the graph, when the caller has it.

    Raises:
        StructureError: The graph doesn't decide; the reasons say what was found where.
    """
    values = values or origins(graph)
    start = (graph.index(source.get_node()), source.get_index())
    end = (graph.index(sink.get_node()), sink.get_index())
    whole = stream(graph, start, end)
    if whole is None:
        reason = Reason(
            "no-stream", "no floating-point data leads from the source to lm_head", _refs(graph, start[0], end[0])
        )
        raise StructureError("the layers cannot be told apart", reasons=(reason,))
    chain = _chain(graph, values, [whole])
    spans, reasons = _spans(graph, chain)
    if reasons:
        # The source itself may reach every layer (per-layer inputs, skips from the embedding). Behind the first
        # residual add the stream is on its own.
        first = _first_residual(graph, whole)
        if first is not None:
            parts = [part for part in (stream(graph, start, first), stream(graph, first, end)) if part is not None]
            chain = _chain(graph, values, parts)
            spans, others = _spans(graph, chain)
            others += _beside(graph, whole, parts)
            if all(reason.code != "skip-across-layers" for reason in others):
                reasons = others
    if reasons:
        raise StructureError("the layers cannot be told apart", reasons=tuple(reasons))
    return _layers(graph, chain, spans)


def _chain(graph: Graph, values: Origins, parts: list[Stream]) -> _Chain:
    chain: list[Step] = []
    kinds: dict[int, str] = {}
    all_reads: dict[int, frozenset[str]] = {}
    for ways in parts:
        reads = state_reads(graph, ways)
        for step in steps(graph, values, ways, reads):
            if step.marks:
                kinds[len(chain)] = layer_kind(graph, values, ways, reads, step)
                all_reads.update((node, reads[node]) for node in step.marks if node in reads)
            chain.append(step)
    return _Chain(chain, kinds, all_reads)


def _spans(graph: Graph, chain: _Chain) -> tuple[list[_Span], list[Reason]]:
    """Group the steps into layers; with reasons, the grouping is not to be trusted."""
    numbers = sorted(chain.kinds)
    if not numbers:
        ends = _refs(graph, chain.steps[0].start[0], chain.steps[-1].end[0]) if chain.steps else ()
        return [], [Reason("no-layers", "no attention and no state lies between the token values and lm_head", ends)]
    reasons = [
        Reason("branch-before-attention", "a branch is added to the stream before any attention", _ends(graph, step))
        for step in chain.steps[: numbers[0]]
        if step.residual
    ]
    for step in chain.steps:
        if step.suspects:
            text = "a convolution or loop that no state feeds: a layer of its own, or part of one?"
            reasons.append(Reason("loop-without-state", text, _refs(graph, *step.suspects)))
    spans: list[_Span] = []
    for i, (begin, end) in enumerate(pairwise([*numbers, len(chain.steps)])):
        span, found = _span(graph, i, chain.steps[begin:end], chain.kinds[begin], last=end == len(chain.steps))
        spans.append(span)
        reasons += found
    if not reasons:
        reasons = _irregular(graph, chain, spans) or _streams(graph, spans)
    return spans, reasons


def _span(graph: Graph, i: int, body: list[Step], kind: str, *, last: bool) -> tuple[_Span, list[Reason]]:
    """One layer's steps: its branches, what follows them, and what is wrong with that."""
    block = body[0]
    reasons: list[Reason] = []
    if not block.residual:
        text = f"the attention or state of layer {i} is not added to the stream it reads"
        reasons.append(Reason("no-residual", text, _ends(graph, block)))
    if block.crossing is not None:
        text = f"several layers begin in one step: a skip leads around the end of the first of them, layer {i}"
        reasons.append(Reason("skip-across-layers", text, _refs(graph, block.crossing, block.end[0])))
    final = max((n for n, step in enumerate(body) if step.residual), default=0)
    branches, behind = body[: final + 1], body[final + 1 :]
    # The last layer may be followed by a projection to the width of lm_head.
    for step in branches[1:] if last else body[1:]:
        if step.mixes and not step.residual:
            text = f"a product replaces the stream behind the attention of layer {i}"
            reasons.append(Reason("projection-between-layers", text, _ends(graph, step)))
    if last:
        return _Span(branches, [], behind, kind), reasons
    tail = list(takewhile(lambda step: not step.joins, behind))
    for step in behind[len(tail) :]:
        if not step.joins:
            text = f"between layers {i} and {i + 1}, an op behind an add of other inputs may belong to either"
            reasons.append(Reason("op-between-layers", text, _ends(graph, step)))
    return _Span(branches, tail, [], kind), reasons


def _irregular(graph: Graph, chain: _Chain, spans: list[_Span]) -> list[Reason]:
    """Why the layers are not of one make."""
    branches = [sum(step.residual for step in span.branches) for span in spans]
    usual = max(set(branches), key=branches.count)
    odd = [i for i, count in enumerate(branches) if count != usual]
    if odd:
        said = ", ".join(f"layer {i} has {branches[i]}" for i in odd[:4]) + (", ..." if len(odd) > 4 else "")
        text = f"the number of branches added to the stream varies: most layers have {usual}, {said}"
        nodes = _refs(graph, *(spans[i].branches[-1].end[0] for i in odd))
        return [Reason("irregular-layers", text, nodes)]
    makes = {
        (span.kind, len({name for node in span.branches[0].marks for name in chain.reads.get(node, ())}))
        for span in spans
    }
    if usual == 1 and len(makes) > 1 and any(span.kind == RECURRENCE for span in spans):
        text = "blocks of unlike recurrences follow each other without an MLP: a layer may be one of them or several"
        return [Reason("irregular-layers", text, _refs(graph, *(span.branches[0].end[0] for span in spans[:2])))]
    return _unlike_tails(graph, spans)


def _unlike_tails(graph: Graph, spans: list[_Span]) -> list[Reason]:
    """Why what follows the branches is not of one make; gives the last layer the tail that all others have."""
    *others, final = spans
    if not others:
        return []
    tail = _types(graph, others[0].tail)
    for i, span in enumerate(others):
        if _types(graph, span.tail) != tail:
            text = f"what follows the last branch differs between layers 0 and {i}: it may belong to the next layer"
            return [Reason("irregular-layers", text, _refs(graph, others[0].branches[-1].end[0], _end(span)[0]))]
    length = len(others[0].tail)
    if _types(graph, final.rest[:length]) != tail:
        text = "what follows the last branch of every other layer is missing behind the last one"
        return [Reason("irregular-layers", text, _refs(graph, _end(others[0])[0], final.branches[-1].end[0]))]
    final.tail, final.rest = final.rest[:length], final.rest[length:]
    return []


def _streams(graph: Graph, spans: list[_Span]) -> list[Reason]:
    """Why the values between layers are not one stream of rows of one width."""
    reasons: list[Reason] = []
    shapes: dict[Value, str] = {}
    widths: set[int] = set()
    for value in [value for span in spans for value in (span.branches[0].start, _end(span))]:
        shape = graph.output(*value).get_partial_shape()
        if shape.rank.is_dynamic or len(shape) not in (2, 3):
            shapes[value] = str(shape)
        elif shape[-1].is_static:
            widths.add(shape[-1].get_length())
    if shapes:
        value, shape = next(iter(shapes.items()))
        text = f"the value between layers has shape {shape}, not [.., rows, width]"
        reasons.append(Reason("several-streams", text, _refs(graph, value[0])))
    if len(widths) > 1:
        text = f"the width of the stream changes between layers: {sorted(widths)}"
        reasons.append(Reason("several-streams", text, _refs(graph, spans[0].branches[0].start[0])))
    for step in spans[-1].rest:
        for node in step.nodes:
            if graph.types[node].startswith("Reduce") and not _reduces_width(graph, node):
                text = "behind the last layer a sum is taken over something other than the width: several streams?"
                reasons.append(Reason("several-streams", text, _refs(graph, node)))
    if spans[-1].rest and len(widths) == 1 and not any(step.mixes for step in spans[-1].rest):
        shape = graph.output(*spans[-1].rest[-1].end).get_partial_shape()
        if shape.rank.is_dynamic or shape[-1] != next(iter(widths)):
            text = f"the stream has width {next(iter(widths))}, what enters lm_head has shape {shape}"
            reasons.append(Reason("several-streams", text, _refs(graph, spans[-1].rest[-1].end[0])))
    return reasons


def _reduces_width(graph: Graph, node: int) -> bool:
    (data, port), (axes, _), *_ = graph.inputs[node]
    rank = len(graph.output(data, port).get_partial_shape())
    return graph.types[axes] == "Constant" and all(
        axis % rank == rank - 1 for axis in map(int, graph.nodes[axes].get_vector())
    )


def _first_residual(graph: Graph, ways: Stream) -> Value | None:
    """The first add of a value and a branch from that same value which holds a mark.

    The add of token and position embedding is none, nor are the adds inside rotary embeddings: neither operand comes
    from the other.
    """
    reads = state_reads(graph, ways)
    for node in ways.nodes:
        if graph.types[node] != "Add":
            continue
        operands = sorted(set(ways.predecessors[node]))
        if len(operands) == 2:
            value, branch = operands
            between = _between(ways, value, branch)
            if value in between and any(is_mark(graph, reads, other) for other in between - {value}):
                return node, 0
    return None


def _beside(graph: Graph, whole: Stream, parts: list[Stream]) -> list[Reason]:
    """Attention that the parts leave out: what comes from the source beside the stream must be no second stream."""
    reads = state_reads(graph, whole)
    kept = {node for part in parts for node in part.nodes}
    beside = [node for node in whole.nodes if node not in kept and is_mark(graph, reads, node)]
    text = "attention or state lies on a way from the token values beside the stream of the layers"
    return [Reason("several-streams", text, _refs(graph, *beside))] if beside else []


def _between(ways: Stream, first: int, last: int) -> set[int]:
    """``last`` and all nodes before it that are not before ``first``."""
    reached = {last}
    waiting = [last]
    while waiting:
        for before in ways.predecessors[waiting.pop()]:
            if before >= first and before not in reached:
                reached.add(before)
                waiting.append(before)
    return reached


def _layers(graph: Graph, chain: _Chain, spans: list[_Span]) -> tuple[Layer, ...]:
    readers: dict[str, set[int]] = {}
    for i, span in enumerate(spans):
        for node in span.branches[0].marks:
            for variable in chain.reads.get(node, ()):
                readers.setdefault(variable, set()).add(i)
    owners = state_owners(graph, [span.branches[0].start for span in spans], readers)
    states: dict[int, list[str]] = {}
    for variable, owner in owners.items():
        states.setdefault(owner, []).append(variable)
    return tuple(
        Layer(
            index=i,
            entry=graph.output(*span.branches[0].start),
            output=graph.output(*_end(span)),
            kind=span.kind,
            attention=tuple(graph.nodes[node] for node in span.branches[0].marks),
            states=tuple(sorted(states.get(i, ()))),
            residuals=tuple(graph.output(*step.end) for step in span.branches if step.residual),
        )
        for i, span in enumerate(spans)
    )


def _end(span: _Span) -> Value:
    return (span.tail or span.branches)[-1].end


def _types(graph: Graph, light: list[Step]) -> list[list[str]]:
    return [[graph.types[node] for node in step.nodes] for step in light]


def _ends(graph: Graph, step: Step) -> tuple[NodeRef, ...]:
    return _refs(graph, step.start[0], step.end[0])


def _refs(graph: Graph, *nodes: int) -> tuple[NodeRef, ...]:
    return tuple(graph.ref(node) for node in nodes)
