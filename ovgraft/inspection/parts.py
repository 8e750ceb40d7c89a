"""Which part of a model each constant belongs to, and which inputs reach which layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import openvino as ov

from ovgraft import ir
from ovgraft.drafts.contract import Port
from ovgraft.inspection.formats import formats_of
from ovgraft.inspection.structure import Structure
from ovgraft.inspection.tree_layers import PartInfo
from ovgraft.ir.weights import VARYING

Part = int | Literal["embedding", "lm_head", "fc", "outputs", "shared"]
"""A layer's number, or what is no layer."""

Value = tuple[int, int]

_ROW_INPUTS = (Port.INPUTS_EMBEDS, Port.HIDDEN_STATES)


@dataclass(frozen=True)
class Flow:
    """Where data runs, by node number.

    Attributes:
        begins: The value that enters layer 0 -> 0, the output of layer i -> i + 1.
        levels: The layer a node works in, the number of layers behind the last one; None where no layer's data comes.
        inputs: For each layer the inputs of the model whose rows reach it through no other layer; first of all the one
            that the stream begins at.
    """

    begins: dict[Value, int]
    levels: list[int | None]
    inputs: list[tuple[str, ...]]


def read_flow(graph: ir.Graph, structure: Structure) -> Flow:
    """Follow the rows of a model through its layers.

    A value behind the output of layer i is at work in layer i + 1. Rows that come in from the side (a context, an
    embedding) and lead to one layer only are at work in that one.
    """
    layers = structure.stack.layers if structure.stack is not None else ()
    begins = {_value(graph, layer.output): layer.index + 1 for layer in layers}
    if layers:
        begins[_value(graph, layers[0].entry)] = 0
    levels: list[int | None] = [None] * len(graph)
    for i, sources in enumerate(graph.inputs):
        reached = [level for source in sources if (level := begins.get(source, levels[source[0]])) is not None]
        levels[i] = max(reached, default=None)
    starts = _starts(graph, structure)
    carried, reaching = _carried(graph, begins, levels, len(layers), list(starts.values()))
    stream = carried[graph.index(layers[0].entry.get_node())] if layers else 0
    order = sorted(enumerate(starts), key=lambda start: not stream >> start[0] & 1)
    names = [tuple(name for bit, name in order if bits >> bit & 1) for bits in reaching]
    _settle_sides(graph, begins, levels, carried)
    return Flow(begins, levels, names)


def _starts(graph: ir.Graph, structure: Structure) -> dict[str, int]:
    """The nodes rows come from, by the name of the input."""
    starts: dict[str, int] = {}
    if structure.embedding is not None:
        starts[Port.INPUT_IDS.value] = graph.index(structure.embedding.gather)
    parameters = graph.find("Parameter")
    for name in _ROW_INPUTS:
        for i in parameters:
            if name in graph.nodes[i].output(0).get_names():
                starts[name.value] = i
    return starts


def _carried(
    graph: ir.Graph, begins: dict[Value, int], levels: Sequence[int | None], count: int, starts: Sequence[int]
) -> tuple[list[int], list[int]]:
    """As bits: whose rows a node outside the layers carries, and whose rows reach each layer from outside."""
    carried = [0] * len(graph)
    reaching = [0] * (count + 1)
    for bit, start in enumerate(starts):
        carried[start] = 1 << bit
    for i, sources in enumerate(graph.inputs):
        bits = carried[i]
        for producer, port in sources:
            if carried[producer] and (producer, port) not in begins and graph.is_real(producer, port):
                bits |= carried[producer]
        level = levels[i]
        if level is not None:
            reaching[level] |= bits
            bits = 0
        carried[i] = bits
    entries = [producer for (producer, _), level in begins.items() if level == 0]
    for entry in entries:
        reaching[0] |= carried[entry]
    return carried, reaching[:count]


def _settle_sides(graph: ir.Graph, begins: dict[Value, int], levels: list[int | None], carried: Sequence[int]) -> None:
    """Give nodes outside the layers, whose rows only one layer reads, to that layer."""
    users = [0] * len(graph)
    for i in reversed(range(len(graph))):
        if levels[i] is not None or not carried[i]:
            continue
        for output, consumer, _ in graph.consumers[i]:
            level = levels[consumer]
            if (i, output) not in begins and graph.types[consumer] != "ShapeOf":
                users[i] |= users[consumer] if level is None else 1 << level
    for i, bits in enumerate(users):
        if bits and bits & (bits - 1) == 0:
            levels[i] = bits.bit_length() - 1


def constants_by_part(graph: ir.Graph, structure: Structure, flow: Flow) -> dict[Part, list[int]]:
    """Which part of the model each constant belongs to.

    A table that embedding and output layer share counts as the embedding's, once. A layer owns what only its own ops
    use; rotary tables, masks, the final norm and what all layers draw on are ``shared``; what leads from a layer to
    another output, such as an FC that was moved in, is ``outputs``.
    """
    owners = _owners(graph, _workplaces(graph, structure, flow))
    embedding, lm_head, fc = structure.embedding, structure.lm_head, structure.fc
    tables: tuple[tuple[Part, ov.Output | None], ...] = (
        ("lm_head", lm_head.weight if lm_head is not None else None),
        ("embedding", embedding.table if embedding is not None else None),
        ("fc", fc.weight.output if fc is not None else None),
        ("fc", fc.bias.output if fc is not None and fc.bias is not None else None),
    )
    for name, root in tables:
        weight = ir.weight_root(root) if root is not None else None
        for node in weight.constants if weight else ():
            owners[graph.index(node)] = name
    repeated = structure.repeated(graph)
    parts: dict[Part, list[int]] = defaultdict(list)
    for i in graph.find("Constant"):
        owner = owners[i]
        if i not in repeated:
            parts["shared" if owner is None else owner].append(i)
    return dict(parts)


def part_weights(graph: ir.Graph, parts: dict[Part, list[int]]) -> tuple[PartInfo, ...]:
    """Weights of each part, most bytes first."""
    found = []
    for part, constants in parts.items():
        formats = formats_of(graph, constants)
        name, layer = ("layer", part) if isinstance(part, int) else (part, None)
        found.append(PartInfo(name, layer, formats, sum(entry.bytes for entry in formats), len(constants)))
    return tuple(sorted(found, key=lambda entry: (-entry.bytes, entry.part, entry.layer or 0)))


def _workplaces(graph: ir.Graph, structure: Structure, flow: Flow) -> list[Part | None]:
    """Where each node works: in a layer, behind the layers on the way to another output, or outside (None).

    What layer 0 computes for all layers alike, such as per-layer inputs, is no part of it.
    """
    if structure.stack is None:
        return [None] * len(graph)
    count = len(structure.stack.layers)
    end = structure.stack.sink.get_node() if structure.lm_head is None else structure.lm_head.matmul
    inside = _inside(graph, flow, graph.index(end))
    everywhere = (1 << count) - 1
    users = _users(graph, flow)
    found: list[Part | None] = []
    for i, level in enumerate(flow.levels):
        if level is not None and not inside[i]:
            found.append("outputs")
        elif level is None or level == count:
            found.append(None)
        else:
            found.append(None if count > 1 and users[i] == everywhere else level)
    return found


def _inside(graph: ir.Graph, flow: Flow, end: int) -> list[bool]:
    """Whether a node leads to the output of its layer, to a later layer, into a state, or to the output layer."""
    inside = [False] * len(graph)
    for i in reversed(range(len(graph))):
        level = flow.levels[i]
        if level is not None:
            inside[i] = (
                i == end
                or graph.types[i] == "Assign"
                or any(
                    flow.begins.get((i, output), 0) > level
                    or (inside[consumer] and (flow.levels[consumer] or 0) >= level)
                    for output, consumer, _ in graph.consumers[i]
                )
            )
    return inside


def _users(graph: ir.Graph, flow: Flow) -> list[int]:
    """For each node that works in layer 0: the layers that use its value, as bits."""
    shapes = set(graph.find("ShapeOf"))  # how long something is, is no use of its value
    users = [0] * len(graph)
    for i in reversed(range(len(graph))):
        if flow.levels[i] != 0 or i in shapes:
            continue
        for output, consumer, _ in graph.consumers[i]:
            level = flow.levels[consumer]
            if level is not None and (i, output) not in flow.begins and consumer not in shapes:
                users[i] |= users[consumer] or 1 if level == 0 else 1 << level
    return users


def _owners(graph: ir.Graph, places: Sequence[Part | None]) -> list[Part | None]:
    """For each node that constants alone decide: the one part that uses it, else ``shared``."""
    fixed = [False] * len(graph)
    for i, sources in enumerate(graph.inputs):
        fixed[i] = graph.types[i] not in VARYING and all(fixed[producer] for producer, _ in sources)
    owners: list[Part | None] = [None] * len(graph)
    for i in reversed(range(len(graph))):
        if not fixed[i]:
            continue
        for _, consumer, _ in graph.consumers[i]:
            place = places[consumer]
            owner = owners[consumer] if fixed[consumer] else "shared" if place is None else place
            owners[i] = owner if owners[i] in (None, owner) else "shared"
    return owners


def _value(graph: ir.Graph, output: ov.Output) -> Value:
    return graph.index(output.get_node()), output.get_index()
