"""Builds ScaledDotProductAttention in the place of written-out attention."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import openvino as ov
from openvino import opset13 as opset

from ovgraft.decoder.decomposed import Decomposed
from ovgraft.errors import StructureError
from ovgraft.ir.refs import node_ref


def fuse(match: Decomposed) -> ov.Node:
    """Replace one written-out attention in its model.

    Returns:
        The new op; it has the friendly name of the MatMul it replaces.

    Raises:
        StructureError: Heads are laid out in a way that has no four-dimensional form.
    """
    old = match.output.get_node()
    rank = match.query.get_partial_shape().rank.get_length()
    query = _four(match.query, rank)
    key = _four(_untransposed(match.key) if match.transposed_key else match.key, rank, like=query)
    value = _four(_untransposed(match.value) if match.transposed_value else match.value, rank, like=query)
    # f16 has no room for a mask of lowest f32 numbers: as -inf it would make a row that sees nothing NaN
    wide = query.get_element_type().bitwidth > 16 or match.element_type.bitwidth > 16
    element_type = ov.Type.f32 if wide else query.get_element_type()
    inputs = [_as_type(each, element_type) for each in (query, key, value)]
    inputs.append(_mask(match, element_type))
    scale = opset.constant(np.array(match.scale, np.float32), element_type)
    node = opset.scaled_dot_product_attention(*inputs, scale, causal=False)
    output = _back(node.output(0), match, rank)
    if output.get_element_type() != match.output.get_element_type():
        output = opset.convert(output, match.output.get_element_type()).output(0)
    name = old.get_friendly_name()
    names = match.output.get_names()
    old.set_friendly_name(f"{name}/replaced")
    node.set_friendly_name(name)
    for target in match.output.get_target_inputs():
        target.replace_source_output(output)
    output.add_names(names)
    return node


def _int(*values: int) -> ov.Node:
    return opset.constant(np.array(values, np.int64))


def _as_type(output: ov.Output, element_type: ov.Type) -> ov.Output:
    return output if output.get_element_type() == element_type else opset.convert(output, element_type).output(0)


def _untransposed(output: ov.Output) -> ov.Output:
    """``[..., size, rows]`` as ``[..., rows, size]``; a Transpose that did it is taken back."""
    rank = output.get_partial_shape().rank.get_length()
    order = [*range(rank - 2), rank - 1, rank - 2]
    node = output.get_node()
    if node.get_type_name() == "Transpose" and node.input_value(1).get_node().get_type_name() == "Constant":
        earlier = [int(axis) for axis in node.input_value(1).get_node().data]
        combined = [earlier[axis] for axis in order]
        if combined == list(range(rank)):
            return node.input_value(0)
        return opset.transpose(node.input_value(0), _int(*combined)).output(0)
    return opset.transpose(output, _int(*order)).output(0)


def _static(output: ov.Output, axis: int) -> int:
    dim = output.get_partial_shape()[axis]
    if dim.is_dynamic:
        raise StructureError(
            "heads and head size must be static to fuse attention",
            node=node_ref(output.get_node()),
            found=str(output.get_partial_shape()),
        )
    return int(dim.get_length())


def _four(output: ov.Output, rank: int, like: ov.Output | None = None) -> ov.Output:
    """``[batch, heads, rows, size]``; keys and values get as many heads as ``like``."""
    if rank == 4:
        return output
    if rank == 3:
        return _unmerged(output)
    if rank == 5:
        heads, groups, size = _static(output, 1), _static(output, 2), _static(output, 4)
        if like is not None:
            wanted = _static(like, 1)
            if heads * groups != wanted:
                groups = wanted // heads
                output = opset.broadcast(output, _int(1, 1, groups, 1, 1), broadcast_spec="BIDIRECTIONAL").output(0)
        return opset.reshape(output, _int(0, heads * groups, -1, size), special_zero=True).output(0)
    raise StructureError(f"attention over rank {rank} is not understood", node=node_ref(output.get_node()))


def _unmerged(output: ov.Output) -> ov.Output:
    """Before batch and heads were merged into one axis."""
    node = output.get_node()
    if node.get_type_name() == "Reshape":
        before = node.input_value(0)
        shape = before.get_partial_shape()
        if shape.rank.is_static and shape.rank.get_length() == 4 and shape[1].is_static and shape[3].is_static:
            return before
    raise StructureError(
        "batch and heads are merged before the attention and their parts are not found", node=node_ref(node)
    )


def _lowest(element_type: ov.Type) -> ov.Output:
    """The lowest finite number of a type: finite, because a row that sees nothing must stay finite."""
    dtypes = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
    limits = ml_dtypes.finfo(dtypes.get(element_type.get_type_name(), np.float32))
    return opset.constant(np.array(limits.min, np.float32), element_type).output(0)


def _mask(match: Decomposed, element_type: ov.Type) -> ov.Output:
    """One additive mask of rank four."""
    parts = []
    for kind, output, factor in match.masks:
        if kind == "select":
            lowest, zero = _lowest(element_type), opset.constant(np.array(0, np.float32), element_type).output(0)
            keep, drop = (zero, lowest) if factor > 0 else (lowest, zero)
            parts.append(opset.select(output, keep, drop).output(0))
            continue
        part = _as_type(output, element_type)
        if factor != 1.0:
            part = opset.multiply(part, opset.convert(opset.constant(np.float32(factor)), element_type)).output(0)
        parts.append(part)
    if not parts:
        return opset.convert(opset.constant(np.zeros((1, 1, 1, 1), np.float32)), element_type).output(0)
    total = parts[0]
    for part in parts[1:]:
        total = opset.add(total, part).output(0)
    if len(parts) > 1:  # two lowest numbers make -inf
        total = opset.maximum(total, _lowest(element_type)).output(0)
    rank = total.get_partial_shape().rank.get_length()
    if rank == 5:
        return opset.squeeze(total, _int(1)).output(0)
    if rank == 3 and match.query.get_partial_shape().rank.get_length() == 3:
        return _unmerged(total)
    while rank < 4:
        total, rank = opset.unsqueeze(total, _int(0)).output(0), rank + 1
    return total


def _back(output: ov.Output, match: Decomposed, rank: int) -> ov.Output:
    """The result in the layout the rest of the model reads."""
    if rank == 4:
        return output
    if rank == 5:
        heads, groups = _static(match.query, 1), _static(match.query, 2)
        return opset.reshape(output, _int(0, heads, groups, -1, _static(output, 3)), special_zero=True).output(0)
    rows = opset.gather(opset.shape_of(output, output_type="i64"), _int(2), _int(0))
    shape = opset.concat([_int(-1), rows, _int(_static(output, 3))], 0)
    return opset.reshape(output, shape, special_zero=False).output(0)
