"""What an attention mask does, found by running its subgraph instead of recognising its shape.

Exporters write the same mask in many ways, and a matcher that misses one drops a window or a bias without a word. The
mask of a ScaledDotProductAttention depends on lengths, positions and perhaps token types, never on large
weights, so its subgraph is cut out of a clone, the cache variables become inputs of any length, and a few small runs
say what it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset

from ovgraft.drafts.contract import Port
from ovgraft.ir.reading import core

Array = npt.NDArray[np.float32]

MASKED = -1e4
"""Exporters write the lowest finite f16 or f32 number, or -inf, for a key that must not be seen."""

_LONGEST = 1 << 17
_F16_MAX = 65504  # a fill value, no length
_ROWS = 6
_PASTS = (0, 9)
_PAST = "past."
_TYPE_CHANGES = {"Convert", "ConvertLike"}


@dataclass(frozen=True)
class MaskFacts:
    """What one attention mask lets through.

    Attributes:
        causal: No row sees a later row, unless ``token_type_ids`` joins them.
        window: A key is seen if ``query position - key position < window``; 0 means no window.
        alibi_slopes: The bias grows by the head's slope from each key to the next; empty without such a bias.
        token_types: Rows whose ``token_type_ids`` is 1 see their whole run of ones.
        problem: Why the mask is none of these, in words; None when the fields above say all of it.
    """

    causal: bool = True
    window: int = 0
    alibi_slopes: tuple[float, ...] = ()
    token_types: bool = False
    problem: str | None = None


def read_masks(model: ov.Model) -> list[MaskFacts]:
    """Read the masks of a stateful decoder.

    Args:
        model: Not changed.

    Returns:
        One entry for each ScaledDotProductAttention, in topological order. Layers that share a mask share the work.
    """
    facts: dict[int, MaskFacts] = {}
    found = []
    for node, function in mask_functions(model):
        if function is None:
            found.append(_without_mask(node))
            continue
        if id(function) not in facts:
            facts[id(function)] = _classify(function)
        found.append(facts[id(function)])
    return found


def mask_functions(model: ov.Model) -> list[tuple[ov.Node, MaskFunction | None]]:
    """The mask of every ScaledDotProductAttention as a function, in topological order.

    Args:
        model: Not changed; the nodes returned are of a clone.

    Returns:
        Attention op and its mask; layers that share a mask share the function, None is an op without a mask input.
    """
    clone = model.clone()
    attention = [node for node in clone.get_ordered_ops() if node.get_type_name() == "ScaledDotProductAttention"]
    roots = [_mask_root(node) for node in attention]
    distinct = {_key(root): root for root in roots if root is not None}
    _free_cache_variables(_nodes_behind(distinct.values()))
    functions = {key: MaskFunction(root) for key, root in distinct.items()}
    return [
        (node, functions[_key(root)] if root is not None else None) for node, root in zip(attention, roots, strict=True)
    ]


class MaskFunction:
    """A mask's subgraph as a function of past length, rows and token types.

    Args:
        root: The mask, in a model whose cache variables were made parameters.
    """

    def __init__(self, root: ov.Output) -> None:
        nodes = _nodes_behind([root])
        scalars = [node.data.item() for node in nodes if node.get_type_name() == "Constant" and node.data.size == 1]
        self.integers = sorted(
            {abs(int(v)) for v in scalars if abs(v) < _LONGEST and v == int(v) and abs(v) != _F16_MAX}
        )
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
        feeds = [_feed(name, port, past, context, rows, types) for name, port in self._ports]
        # the plugin takes shapes that do not fit and reads past the end, shape inference does not
        self._shapes.reshape({i: ov.PartialShape(list(feed.shape)) for i, feed in enumerate(feeds)})
        found = self._request.infer(feeds)[0]
        bias = np.where(found > 0, 0, -np.inf) if self._boolean else np.where(found <= MASKED, -np.inf, found)
        lifted: Array = bias.astype(np.float32).reshape((1,) * (4 - bias.ndim) + bias.shape)[0]
        return lifted


def _key(output: ov.Output) -> tuple[int, int]:
    return output.get_node().get_instance_id(), output.get_index()


def _without_mask(node: ov.Node) -> MaskFacts:
    if node.get_attributes().get("causal"):
        return MaskFacts()
    return MaskFacts(causal=False, problem="the attention has no mask: every row sees every row")


def _mask_root(node: ov.Node) -> ov.Output | None:
    """The mask before each layer's own type conversion, so that layers with one mask are seen to share it."""
    if node.get_attributes().get("causal") or node.get_input_size() < 4:
        return None
    output = node.input_value(3)
    while output.get_node().get_type_name() in _TYPE_CHANGES:
        output = output.get_node().input_value(0)
    return output


def _nodes_behind(outputs: Iterable[ov.Output]) -> list[ov.Node]:
    """Every node the outputs depend on; cache variables end the walk."""
    seen: dict[int, ov.Node] = {}
    stack = [output.get_node() for output in outputs]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if node.get_type_name() != "ReadValue":
            stack.extend(source.get_node() for source in node.input_values())
    return list(seen.values())


def _free_cache_variables(nodes: Iterable[ov.Node]) -> None:
    """Put a parameter of any length in the place of every cache variable."""
    variables = [node for node in nodes if node.get_type_name() == "ReadValue"]
    for count, node in enumerate(variables):
        parameter = opset.parameter(node.get_output_partial_shape(0), node.get_output_element_type(0))
        parameter.output(0).set_names({f"{_PAST}{count}"})
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


def _classify(mask: MaskFunction) -> MaskFacts:
    try:
        samples = [mask(past, _ROWS) for past in _PASTS]
    except RuntimeError as error:
        return MaskFacts(causal=False, problem=f"the mask could not be run: {str(error).strip().splitlines()[-1]}")
    window, problem = _window(mask)
    if problem is not None:
        return MaskFacts(causal=False, problem=problem)
    slopes: tuple[float, ...] = ()
    for past, bias in zip(_PASTS, samples, strict=True):
        if not np.array_equal(np.isfinite(bias), _expected(past, _ROWS, window, bias.shape[0])):
            what = "rows see later rows" if _sees_later(past, bias) else "rows do not see all earlier rows"
            return MaskFacts(causal=False, window=window, problem=f"the mask is not causal: {what}")
        found = _alibi(bias)
        if found is None:
            return MaskFacts(window=window, problem="the mask adds a bias that is not linear in the distance")
        slopes = found
    if not mask.takes_token_types:
        return MaskFacts(window=window, alibi_slopes=slopes)
    return _with_token_types(mask, window, slopes)


def _expected(past: int, rows: int, window: int, heads: int) -> npt.NDArray[np.bool_]:
    distance = np.arange(past, past + rows)[:, None] - np.arange(past + rows)[None]
    seen = (distance >= 0) & (distance < window if window else True)
    return np.broadcast_to(seen, (heads, rows, past + rows))


def _sees_later(past: int, bias: Array) -> bool:
    rows = bias.shape[1]
    later = np.arange(past + rows)[None] > np.arange(past, past + rows)[:, None]
    return bool(np.isfinite(bias[:, later]).any())


def _window(mask: MaskFunction) -> tuple[int, str | None]:
    """The sliding window, from single rows long enough to pass every integer the subgraph holds."""
    found = set()
    lengths = [value + extra for value in mask.integers if value > 1 for extra in (2, 7)] or [_ROWS]
    for length in sorted(lengths):
        try:
            row = mask(length - 1, 1)
        except RuntimeError:
            break  # a table of limited length ends here, and so does every sequence the model can take
        seen = np.isfinite(row[:, 0])
        if not np.array_equal(seen, np.broadcast_to(seen[:1], seen.shape)):
            return 0, "the mask shows each head other keys"
        count = int(seen[0].sum())
        if not seen[0, length - count :].all():
            return 0, "the mask hides keys inside what a row sees"
        found.add(count if count < length else 0)
    windows = sorted(found - {0})
    if len(windows) > 1:
        return 0, f"what a row sees changes with its position (last {windows} keys): chunked attention"
    return (windows[0] if windows else 0), None


def _alibi(bias: Array) -> tuple[float, ...] | None:
    """Slopes of a bias that is linear in the key position; () when there is no bias, None when it is another one."""
    slopes = []
    for head in bias:
        row = head[-1][np.isfinite(head[-1])]
        slope = float(row[-1] - row[0]) / max(len(row) - 1, 1)
        for line in head:
            seen = line[np.isfinite(line)]
            if not np.allclose(np.diff(seen), slope, rtol=1e-3, atol=1e-6):
                return None
        slopes.append(slope)
    return tuple(slopes) if any(slopes) else ()


def _with_token_types(mask: MaskFunction, window: int, slopes: tuple[float, ...]) -> MaskFacts:
    """A mask that reads ``token_type_ids``: ones must join exactly their own run."""
    types = (1, 1, 0, 1, 1, 0)
    past = _PASTS[1]
    bias = mask(past, len(types), types)
    wanted = _expected(past, len(types), window, bias.shape[0]).copy()
    for begin, end in ((0, 2), (3, 5)):
        wanted[:, begin:end, past + begin : past + end] = True
    seen = np.isfinite(bias)
    if np.array_equal(seen, wanted):
        return MaskFacts(window=window, alibi_slopes=slopes, token_types=True)
    if np.array_equal(seen, _expected(past, len(types), window, bias.shape[0])):
        return MaskFacts(window=window, alibi_slopes=slopes)
    return MaskFacts(causal=False, window=window, problem="token_type_ids joins other rows than runs of ones")
