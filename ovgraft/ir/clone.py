"""Copies of weight subgraphs that may live in another model."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov

from ovgraft.ir.refs import node_ref
from ovgraft.ir.rtinfo import strip_weightless_cache
from ovgraft.ir.weights import weight_root


def clone_subgraph(outputs: Sequence[ov.Output]) -> list[ov.Output]:
    """Copy subgraphs that hang on constants alone.

    Attributes, friendly names, tensor names and rt_info come along, weight memory is shared, and what the outputs
    share stays shared. The offset of each Constant in its .bin is dropped.

    Args:
        outputs: Outputs of one or several models; none may depend on an input or a state.

    Returns:
        The copies, in the order of ``outputs``.

    Raises:
        ValueError: An output depends on an input or a state.
    """
    for output in outputs:
        # asked first: a Model that OpenVINO refuses leaves its Results behind on the outputs
        if weight_root(output) is None:
            raise ValueError(f"{node_ref(output.get_node())} is not made of constants alone")
    copy = ov.Model(list(outputs), []).clone()
    clones = [result.input_value(0) for result in copy.get_results()]
    for node in copy.get_ordered_ops():
        strip_weightless_cache(node)
    return clones
