"""What a model's layers, weights and states are made of, read from the graph when somebody asks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

import openvino as ov

from ovgraft import decoder, ir
from ovgraft.decoder.paging import PagedInput
from ovgraft.inspection.tree import AttentionInfo, FormatInfo, LayerDetails, PartInfo, PortInfo
from ovgraft.ir.weights import VARYING

Part = int | Literal["embedding", "lm_head", "outputs", "shared"]
"""A layer's number, or what is no layer."""


def formats_of(graph: ir.Graph, constants: Iterable[int]) -> tuple[FormatInfo, ...]:
    """Bytes and number of some constants by element type, most bytes first."""
    sizes: dict[str, int] = defaultdict(int)
    counts: Counter[str] = Counter()
    for i in constants:
        element_type = graph.nodes[i].get_output_element_type(0).get_type_name()
        sizes[element_type] += graph.nodes[i].get_byte_size()
        counts[element_type] += 1
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return tuple(FormatInfo(element_type, size, counts[element_type]) for element_type, size in ordered)


def layer_details(structure: decoder.Decoder, parts: dict[Part, list[int]]) -> list[LayerDetails]:
    """Details of each layer.

    Args:
        structure: The decoder, read.
        parts: What :func:`constants_by_part` says of it.
    """
    graph = structure.graph
    attention: dict[int, list[AttentionInfo]] = defaultdict(list)
    for found in decoder.read_attention(structure):
        attention[found.layer].append(
            AttentionInfo(
                node=graph.ref(graph.index(found.node)),
                heads=found.heads,
                kv_heads=found.kv_heads,
                head_size=found.head_size,
                value_head_size=found.value_head_size,
                window=found.window,
                sinks=found.sinks,
                states=found.states or _caches(graph, graph.index(found.node)),
                state_layer=found.state_layer,
            )
        )
    details = []
    for layer in structure.layers:
        weights = formats_of(graph, parts.get(layer.index, ()))
        size = sum(entry.bytes for entry in weights)
        details.append(LayerDetails(port(layer.output), tuple(attention[layer.index]), weights, size))
    return details


def _caches(graph: ir.Graph, attention: int) -> tuple[str, ...]:
    """The inputs that hold keys and values of a paged attention op, which has no variables."""
    if graph.types[attention] != "PagedAttentionExtension":
        return ()
    sources = graph.inputs[attention][PagedInput.KEY_CACHE : PagedInput.KEY_CACHE + 2]
    return tuple(graph.names[source] for source, _ in sources if graph.types[source] == "Parameter")


def port(output: ov.Output) -> PortInfo:
    """Names, type and shape of an output."""
    shape = str(output.get_partial_shape())
    return PortInfo(tuple(sorted(output.get_names())), output.get_element_type().get_type_name(), shape)


def part_weights(graph: ir.Graph, parts: dict[Part, list[int]]) -> tuple[PartInfo, ...]:
    """Weights of each part, most bytes first."""
    found = []
    for part, constants in parts.items():
        formats = formats_of(graph, constants)
        name, layer = ("layer", part) if isinstance(part, int) else (part, None)
        found.append(PartInfo(name, layer, formats, sum(entry.bytes for entry in formats), len(constants)))
    return tuple(sorted(found, key=lambda entry: (-entry.bytes, entry.part, entry.layer or 0)))


def constants_by_part(
    graph: ir.Graph,
    layers: Sequence[decoder.Layer],
    embedding: decoder.Embedding | None,
    lm_head: decoder.LmHead | None,
) -> dict[Part, list[int]]:
    """Which part of the model each constant belongs to.

    A table that embedding and output layer share counts as the embedding's. A layer owns what only its own ops use;
    rotary tables, masks, the final norm and what all layers draw on are ``shared``; what leads from a layer to another
    output, such as an FC that was moved in, is ``outputs``.
    """
    end = graph.index(lm_head.matmul) if lm_head is not None else None
    owners = _owners(graph, _levels(graph, layers, end))
    tables: tuple[tuple[Part, ov.Output | None], ...] = (
        ("lm_head", lm_head.weight if lm_head is not None else None),
        ("embedding", embedding.table if embedding is not None else None),
    )
    for name, root in tables:
        weight = ir.weight_root(root) if root is not None else None
        for node in weight.constants if weight else ():
            owners[graph.index(node)] = name
    parts: dict[Part, list[int]] = defaultdict(list)
    for i in graph.find("Constant"):
        owner = owners[i]
        parts["shared" if owner is None else owner].append(i)
    return dict(parts)


def _levels(graph: ir.Graph, layers: Sequence[decoder.Layer], end: int | None) -> list[Part | None]:
    """Where each node works: in a layer, behind the layers on the way to another output, or outside (None).

    A value behind the output of layer i is at work in layer i + 1. What layer 0 computes for all layers alike, such as
    per-layer inputs, is no part of it.
    """
    begins = {_value(graph, layer.output): layer.index + 1 for layer in layers}
    if layers:
        begins[_value(graph, layers[0].entry)] = 0
    levels: list[int | None] = [None] * len(graph)
    for i, sources in enumerate(graph.inputs):
        reached = [level for source in sources if (level := begins.get(source, levels[source[0]])) is not None]
        levels[i] = max(reached, default=None)
    inside = _inside(graph, levels, begins, end)
    everywhere = (1 << len(layers)) - 1
    users = _users(graph, levels, begins)
    found: list[Part | None] = []
    for i, level in enumerate(levels):
        if level is not None and not inside[i]:
            found.append("outputs")
        elif level is None or level == len(layers):
            found.append(None)
        else:
            found.append(None if len(layers) > 1 and users[i] == everywhere else level)
    return found


def _inside(
    graph: ir.Graph, levels: Sequence[int | None], begins: dict[tuple[int, int], int], end: int | None
) -> list[bool]:
    """Whether a node leads to the output of its layer, to a later layer, into a state, or to the output layer."""
    inside = [False] * len(graph)
    for i in reversed(range(len(graph))):
        level = levels[i]
        if level is not None:
            inside[i] = (
                i == end
                or graph.types[i] == "Assign"
                or any(
                    begins.get((i, output), 0) > level or (inside[consumer] and (levels[consumer] or 0) >= level)
                    for output, consumer, _ in graph.consumers[i]
                )
            )
    return inside


def _users(graph: ir.Graph, levels: Sequence[int | None], begins: dict[tuple[int, int], int]) -> list[int]:
    """For each node that works in layer 0: the layers that use its value, as bits."""
    shapes = set(graph.find("ShapeOf"))  # how long something is, is no use of its value
    users = [0] * len(graph)
    for i in reversed(range(len(graph))):
        if levels[i] != 0 or i in shapes:
            continue
        for output, consumer, _ in graph.consumers[i]:
            level = levels[consumer]
            if level is not None and (i, output) not in begins and consumer not in shapes:
                users[i] |= users[consumer] or 1 if level == 0 else 1 << level
    return users


def _value(graph: ir.Graph, output: ov.Output) -> tuple[int, int]:
    return graph.index(output.get_node()), output.get_index()


def _owners(graph: ir.Graph, levels: Sequence[Part | None]) -> list[Part | None]:
    """For each node that constants alone decide: the one part that uses it, else ``shared``."""
    fixed = [False] * len(graph)
    for i, sources in enumerate(graph.inputs):
        fixed[i] = graph.types[i] not in VARYING and all(fixed[producer] for producer, _ in sources)
    owners: list[Part | None] = [None] * len(graph)
    for i in reversed(range(len(graph))):
        if not fixed[i]:
            continue
        for _, consumer, _ in graph.consumers[i]:
            level = levels[consumer]
            owner = owners[consumer] if fixed[consumer] else "shared" if level is None else level
            owners[i] = owner if owners[i] in (None, owner) else "shared"
    return owners
