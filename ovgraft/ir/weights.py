"""Weights as the graph holds them: constants and the decompression ops behind them."""

from __future__ import annotations

from dataclasses import dataclass

import openvino as ov

# Nodes without inputs, or with effects, whose value is not fixed by the constants above them.
VARYING = frozenset(
    {"Parameter", "ReadValue", "Assign", "RandomUniform", "Multinomial", "Loop", "TensorIterator", "If", "Result"}
)


@dataclass(frozen=True)
class WeightSubgraph:
    """Everything above one output, all of it constant.

    Attributes:
        output: The output, in the type the model computes with.
        nodes: Every node above the output, the producer of the output last, in topological order.
        constants: The Constants among ``nodes``, in the same order.
        format: Element type of the constant with the most elements: ``f32``, ``f16``, ``bf16``, ``u8``, ``i8``,
            ``u4``, ``i4`` and so on.
        bytes: Stored size of all constants together, in bytes.
    """

    output: ov.Output
    nodes: tuple[ov.Node, ...]
    constants: tuple[ov.Node, ...]
    format: str
    bytes: int


def weight_root(output: ov.Output) -> WeightSubgraph | None:
    """The weight subgraph that ends in ``output``; no constant is read.

    Args:
        output: For example what feeds input 1 of a MatMul.

    Returns:
        The subgraph, or None when the value depends on an input, a state or chance.
    """
    nodes: list[ov.Node] = []
    seen: set[int] = set()
    stack: list[tuple[ov.Node, bool]] = [(output.get_node(), False)]
    while stack:
        node, inputs_done = stack.pop()
        if inputs_done:
            nodes.append(node)
            continue
        # `nodes` and `stack` keep every seen node alive, so its id stays its own.
        if id(node) in seen:
            continue
        if node.get_type_name() in VARYING:
            return None
        seen.add(id(node))
        stack.append((node, True))
        stack.extend((source.get_node(), False) for source in reversed(node.input_values()))
    constants = [node for node in nodes if node.get_type_name() == "Constant"]
    if not constants:
        return None
    largest = max(constants, key=_element_count)
    return WeightSubgraph(
        output=output,
        nodes=tuple(nodes),
        constants=tuple(constants),
        format=largest.get_output_element_type(0).get_type_name(),
        bytes=sum(constant.get_byte_size() for constant in constants),
    )


def _element_count(constant: ov.Node) -> int:
    count = 1
    for size in constant.get_output_shape(0):
        count *= size
    return count
