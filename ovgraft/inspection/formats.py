"""Element types and sizes of weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from ovgraft import ir
from ovgraft.inspection.tree_layers import FormatInfo


def formats_of(graph: ir.Graph, constants: Iterable[int]) -> tuple[FormatInfo, ...]:
    """Bytes and number of some constants by element type, most bytes first."""
    nodes = (graph.nodes[i] for i in constants)
    return by_format((node.get_output_element_type(0).get_type_name(), node.get_byte_size()) for node in nodes)


def by_format(tensors: Iterable[tuple[str, int]]) -> tuple[FormatInfo, ...]:
    """The same of element types and sizes in bytes."""
    sizes: dict[str, int] = defaultdict(int)
    counts: Counter[str] = Counter()
    for element_type, size in tensors:
        sizes[element_type] += size
        counts[element_type] += 1
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return tuple(FormatInfo(element_type, size, counts[element_type]) for element_type, size in ordered)
