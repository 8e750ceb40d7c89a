"""Element types and sizes of weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import openvino as ov

from ovgraft import ir
from ovgraft.inspection.tree_layers import FormatInfo
from ovgraft.ir.constants import constant_address

_LARGE = 1 << 12
"""Bytes from which on a constant is looked up by where it lies: two may be one table of the .bin."""


def formats_of(
    graph: ir.Graph, constants: Iterable[int], counted: set[tuple[int, int]] | None = None
) -> tuple[FormatInfo, ...]:
    """Bytes and number of some constants by element type, most bytes first.

    Args:
        graph: The model.
        constants: Indices of nodes.
        counted: Places and sizes of large constants that have been counted already; grows. What lies in one place, as
            tied tables do, has its bytes counted once.
    """
    counted = set() if counted is None else counted

    def size(node: ov.Node) -> int:
        found = int(node.get_byte_size())
        if found < _LARGE or node.get_output_element_type(0) == ov.Type.string:
            return found
        place = constant_address(node.data), found
        if place in counted:
            return 0
        counted.add(place)
        return found

    nodes = (graph.nodes[i] for i in constants)
    return by_format((node.get_output_element_type(0).get_type_name(), size(node)) for node in nodes)


def by_format(tensors: Iterable[tuple[str, int]]) -> tuple[FormatInfo, ...]:
    """The same of element types and sizes in bytes."""
    sizes: dict[str, int] = defaultdict(int)
    counts: Counter[str] = Counter()
    for element_type, size in tensors:
        sizes[element_type] += size
        counts[element_type] += 1
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return tuple(FormatInfo(element_type, size, counts[element_type]) for element_type, size in ordered)
