"""A decoder's attention mask as a function of lengths: its subgraph, copied out and compiled.

Only what the mask computes with is kept. Cache variables become inputs of any length, and activations that are asked
for their shape alone become inputs of that shape, so no large weight is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset

from ovgraft.drafts.contract import Port
from ovgraft.ir.reading import core

Array = npt.NDArray[np.float32]

MASKED = -1e4
"""Exporters write the lowest finite f16 or f32 number, or -inf, for a key that must not be seen."""

LONGEST = 1 << 17

_F16_MAX = 65504  # a fill value, no length
_PAST, _ACTIVATION = "past.", "activation."
_TYPE_CHANGES = {"Convert", "ConvertLike"}
_LENGTHS = {Port.ATTENTION_MASK, Port.POSITION_IDS, Port.TOKEN_TYPE_IDS, Port.BEAM_IDX, "cache_position"}
"""Inputs whose values say where rows are, not what they hold."""


def mask_functions(attention: Sequence[ov.Node], *, draft: bool = False) -> list[MaskFunction | None]:
    """The masks of some ScaledDotProductAttention ops.

    Args:
        attention: The ops, of one model, which is left as it is.
        draft: The model has context rows beside the rows of its block, so activations are of two lengths.

    Returns:
        One entry an op; layers that share a mask share the function. None where an op has no mask input.
    """
    roots = [_mask_root(node) for node in attention]
    functions: dict[tuple[int, int], MaskFunction] = {}
    for root in roots:
        if root is not None and _key(root) not in functions:
            functions[_key(root)] = MaskFunction(root, draft=draft)
    return [functions[_key(root)] if root is not None else None for root in roots]


class MaskFunction:
    """A mask's subgraph as a function of past length, rows and token types.

    Args:
        root: The mask; its model is left as it is.
        draft: See :func:`mask_functions`.

    Attributes:
        integers: Whole numbers in the subgraph, among them its window.
        content: What the mask depends on that says what rows hold, such as the token ids; "" when nothing.
    """

    def __init__(self, root: ov.Output, *, draft: bool = False) -> None:
        root = _copy(root)
        keep_alive = _nodes_behind(root)
        self.content = _content(root)
        _free_cache_variables(keep_alive)
        activations = _activations(root)
        # context and block rows are of two lengths: shape inference tells which one an activation has
        self._activations = _model_of(activations) if draft and activations else None
        for count, node in enumerate(activations):
            _free(node, f"{_ACTIVATION}{count}")
        nodes = _nodes_behind(root)
        scalars = [node.data.item() for node in nodes if node.get_type_name() == "Constant" and node.data.size == 1]
        whole = {abs(int(value)) for value in scalars if abs(value) < LONGEST and value == int(value)}
        self.integers = sorted(whole - {_F16_MAX})
        self._boolean = root.get_element_type() == ov.Type.boolean
        parameters = [node for node in nodes if node.get_type_name() == "Parameter"]
        self._ports = [(_port_name(parameter), parameter.output(0)) for parameter in parameters]
        model = ov.Model([opset.result(opset.convert(root, "f32"))], parameters, "mask")
        self._shapes = model.clone()
        config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        self._request = core().compile_model(model, "CPU", config).create_infer_request()

    @property
    def takes_token_types(self) -> bool:
        """Whether the mask reads ``token_type_ids``."""
        return any(name == Port.TOKEN_TYPE_IDS for name, _ in self._ports)

    def __call__(self, past: int, rows: int, token_types: Iterable[int] | None = None) -> Array:
        """Run it for one request without padding.

        Returns:
            Additive bias ``[heads or 1, rows, past + rows]``; ``-inf`` where a key is not seen.

        Raises:
            RuntimeError: The subgraph does not take these lengths.
        """
        types = np.zeros(rows, np.int64) if token_types is None else np.fromiter(token_types, np.int64, rows)
        bias = self.run(past, rows, token_types=types)
        heads, height, width = bias.shape
        if height not in (1, rows) or width not in (1, past + rows):  # CPU may clip and say nothing
            raise RuntimeError(f"the mask has shape {list(bias.shape)} for {rows} rows after {past}")
        return np.broadcast_to(bias, (heads, rows, past + rows))

    def run(self, past: int, rows: int, *, context: int = 0, token_types: npt.NDArray[np.int64] | None = None) -> Array:
        """Run it as it is, for any keys it may have.

        Args:
            past: Rows in the cache.
            rows: New rows; in a draft the rows of the block.
            context: Rows of ``hidden_states`` that a draft gets with the block.
            token_types: One for each row.

        Returns:
            Additive bias ``[heads or 1, rows or 1, keys]``; ``-inf`` where a key is not seen.

        Raises:
            RuntimeError: The subgraph does not take these lengths.
        """
        types = np.zeros(rows, np.int64) if token_types is None else token_types
        shapes = self._activation_shapes(past, context, rows)
        feeds = [
            np.zeros(shapes[name], port.get_element_type().to_dtype())
            if name in shapes
            else _feed(name, port, past, context, rows, types)
            for name, port in self._ports
        ]
        # the plugin takes shapes that do not fit and reads past the end, shape inference does not
        self._shapes.reshape({i: ov.PartialShape(list(feed.shape)) for i, feed in enumerate(feeds)})
        found = self._request.infer(feeds)[0]
        bias = np.where(found > 0, 0, -np.inf) if self._boolean else np.where(found <= MASKED, -np.inf, found)
        lifted: Array = bias.astype(np.float32).reshape((1,) * (4 - bias.ndim) + bias.shape)[0]
        return lifted

    def _activation_shapes(self, past: int, context: int, rows: int) -> dict[str, list[int]]:
        """Of a draft: the shape of every activation, by the name of the input in its place."""
        if self._activations is None:
            return {}
        types = np.zeros(context + rows, np.int64)
        given = [
            _feed(_port_name(port.get_node()), port, past, context, rows, types) for port in self._activations.inputs
        ]
        self._activations.reshape({i: ov.PartialShape(list(value.shape)) for i, value in enumerate(given)})
        return {f"{_ACTIVATION}{i}": list(port.get_shape()) for i, port in enumerate(self._activations.outputs)}


def _key(output: ov.Output) -> tuple[int, int]:
    return output.get_node().get_instance_id(), output.get_index()


def _mask_root(node: ov.Node) -> ov.Output | None:
    """The mask before each layer's own type conversion, so that layers with one mask are seen to share it."""
    if node.get_attributes().get("causal") or node.get_input_size() < 4:
        return None
    output = node.input_value(3)
    while output.get_node().get_type_name() in _TYPE_CHANGES:
        output = output.get_node().input_value(0)
    return output


def _copy(root: ov.Output) -> ov.Output:
    """The same output in a copy of what is behind it, a small part of the model."""
    nodes = _nodes_behind(root)
    parameters = [node for node in nodes if node.get_type_name() == "Parameter"]
    # the Result is gone again, and the model as it was, when this function returns
    part = ov.Model([opset.result(root)], parameters, "mask").clone()
    return part.get_results()[0].input_value(0)


def _nodes_behind(root: ov.Output, *, values: bool = False) -> list[ov.Node]:
    """Every node an output depends on.

    Args:
        root: The output.
        values: Leave out what is asked for its shape alone.
    """
    seen: dict[int, ov.Node] = {}
    stack = [root.get_node()]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if not (values and node.get_type_name() == "ShapeOf"):
            stack.extend(source.get_node() for source in node.input_values())
    return list(seen.values())


def _content(root: ov.Output) -> str:
    """An input whose values the mask depends on although they say nothing of lengths or row kinds."""
    for node in _nodes_behind(root, values=True):
        kind = node.get_type_name()
        if kind == "ReadValue" or (kind == "Parameter" and _port_name(node) not in _LENGTHS):
            return "cached values" if kind == "ReadValue" else f"the values of {_port_name(node)}"
    return ""


def _free_cache_variables(nodes: Iterable[ov.Node]) -> None:
    """Put a parameter of any length in the place of every cache variable."""
    variables = [node for node in nodes if node.get_type_name() == "ReadValue"]
    for count, node in enumerate(variables):
        _free(node, f"{_PAST}{count}")


def _activations(root: ov.Output) -> list[ov.Node]:
    """Products ``[B, rows, width]`` that are asked for their shape alone; weights stay out with them."""
    used = {id(node) for node in _nodes_behind(root, values=True)}
    return [
        node
        for node in _nodes_behind(root)
        if node.get_type_name() == "MatMul" and id(node) not in used and _is_rows(node.get_output_partial_shape(0))
    ]


def _model_of(nodes: Sequence[ov.Node]) -> ov.Model:
    """A copy of all that is behind some nodes, whose outputs they are."""
    behind = {id(node): node for root in nodes for node in _nodes_behind(root.output(0))}
    parameters = [node for node in behind.values() if node.get_type_name() == "Parameter"]
    return ov.Model([opset.result(node) for node in nodes], parameters, "activations").clone()


def _is_rows(shape: ov.PartialShape) -> bool:
    return shape.rank.is_static and len(shape) == 3 and shape[1].is_dynamic and shape[2].is_static


def _free(node: ov.Node, name: str) -> None:
    parameter = opset.parameter(node.get_output_partial_shape(0), node.get_output_element_type(0))
    parameter.output(0).set_names({name})
    for target in node.output(0).get_target_inputs():
        target.replace_source_output(parameter.output(0))


def _port_name(parameter: ov.Node) -> str:
    """The decoder port a parameter is, or the first of its names."""
    names = sorted(parameter.output(0).get_names())
    return next((name for name in names if name in tuple(Port)), names[0] if names else "")


def _feed(
    name: str, port: ov.Output, past: int, context: int, rows: int, token_types: npt.NDArray[np.int64]
) -> npt.NDArray[np.generic]:
    """The tensor this port would get for one request; values only where a mask can depend on them."""
    dims = [dim.get_length() if dim.is_static else None for dim in port.get_partial_shape()]
    dtype = port.get_element_type().to_dtype()
    total = past + context + rows
    if name == Port.ATTENTION_MASK:
        return np.ones((1, total), dtype)
    if name == Port.BEAM_IDX:
        return np.zeros(1, dtype)
    if name == Port.POSITION_IDS:
        positions = np.arange(past, total).astype(dtype)
        return np.broadcast_to(positions, (*(dim or 1 for dim in dims[:-1]), len(positions))).copy()
    if name == Port.TOKEN_TYPE_IDS:
        return token_types.astype(dtype).reshape([1] * (len(dims) - 1) + [rows])
    if name.startswith(_PAST):
        return np.zeros([1] + [past if dim is None else dim for dim in dims[1:]], dtype)
    if len(dims) < 2:
        return np.arange(past, total).astype(dtype)  # cache_position of older exports
    length = context if context and name == Port.HIDDEN_STATES else rows
    width = _width(port) if dims[-1] is None and len(dims) > 2 else dims[-1]
    inner = [1 if dim is None else dim for dim in dims[2:-1]]
    return np.zeros([1, length, *inner, *([width or 1] if len(dims) > 2 else [])], dtype)


def _width(port: ov.Output) -> int | None:
    """The last dimension an input of any width must have for the MatMul it enters."""
    for target in port.get_target_inputs():
        node = target.get_node()
        if node.get_type_name() == "MatMul" and target.get_index() == 0:
            weight = node.input_value(1).get_partial_shape()
            inner = weight[-1] if node.get_attributes()["transpose_b"] else weight[-2]
            return inner.get_length() if inner.is_static else None
    return None
