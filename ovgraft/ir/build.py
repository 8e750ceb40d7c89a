"""Inputs and outputs with names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from openvino import opset16 as opset

__all__ = ["make_parameter", "make_result", "opset", "rename_tensor"]


def make_parameter(name: str, element_type: ov.Type | str, shape: Sequence[int] | ov.PartialShape) -> ov.Node:
    """A model input whose friendly name and tensor name are the same; add it with ``Model.add_parameters``.

    Args:
        name: Friendly name and tensor name (OpenVINO finds inputs by the one and decides by the other).
        element_type: For example ``"i64"``.
        shape: -1 for a dynamic dimension.
    """
    kind = getattr(ov.Type, element_type) if isinstance(element_type, str) else element_type
    parameter = opset.parameter(ov.PartialShape(shape), kind, name=name)
    parameter.output(0).set_names({name})
    return parameter


def _has_result(output: ov.Output) -> bool:
    return any(target.get_node().get_type_name() == "Result" for target in output.get_target_inputs())


def _identity(output: ov.Output, name: str) -> ov.Output:
    """The same value on another output."""
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic:
        node = opset.identity(output)
    else:
        pattern = opset.constant(np.zeros(shape.rank.get_length(), np.int64))
        pattern.set_friendly_name(f"{name}/identity/pattern")
        node = opset.reshape(output, pattern, special_zero=True)
    node.set_friendly_name(f"{name}/identity")
    return node.output(0)


def make_result(output: ov.Output, name: str) -> ov.Node:
    """A named model output; add it with ``Model.add_results``.

    Two Results on one output would make the compiled model lose a name, so an output that has one already gets a
    Reshape to its own shape in between.

    Args:
        output: The value.
        name: Friendly name of the Result and tensor name of the value, added to the names it has.
    """
    source = _identity(output, name) if _has_result(output) else output
    result = opset.result(source)
    result.set_friendly_name(name)
    result.output(0).set_names({name})
    return result


def rename_tensor(output: ov.Output, name: str) -> None:
    """Give a tensor one name instead of those it has.

    A Parameter or Result takes the name as its friendly name too: OpenVINO's PagedAttention conversion finds inputs
    by tensor name but decides by friendly name.
    """
    output.set_names({name})
    node = output.get_node()
    if node.get_type_name() in ("Parameter", "Result"):
        node.set_friendly_name(name)
