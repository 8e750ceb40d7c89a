"""Reads an .onnx file into the same tree as an IR: ports, ops, initializers; weights beside the file are not opened."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ovgraft.errors import ModelFileError
from ovgraft.inspection.formats import by_format
from ovgraft.inspection.nodes import chosen
from ovgraft.inspection.request import SUMMARY, Request
from ovgraft.inspection.tree import ModelInfo
from ovgraft.inspection.tree_layers import FormatInfo, PartInfo, PortInfo
from ovgraft.inspection.tree_nodes import GraphInfo, NodeInfo, OutputInfo, SourceInfo
from ovgraft.noderef import NodeRef

if TYPE_CHECKING:
    import onnx

_OPENVINO_NAMES = {"FLOAT": "f32", "FLOAT16": "f16", "DOUBLE": "f64", "BFLOAT16": "bf16", "BOOL": "boolean"}
_BITS = {"boolean": 8}


def collect_onnx(path: Path, request: Request = SUMMARY) -> ModelInfo:
    """What an ONNX model is made of.

    Args:
        path: The .onnx file; weights it keeps in other files are counted, not read.
        request: What is wanted beyond the summary; layers and states are not told from ONNX.

    Raises:
        ModelFileError: Not an ONNX model.
        SpecError: The request names one node and several are called so.
    """
    model = _load(path)
    nodes = _nodes(model)
    edges = [[source for source, _ in node.sources if source >= 0] for node in nodes]
    names = [node.name for node in nodes]
    weights = _formats(model.graph.initializer)
    asked = chosen(names, edges, request) if request.node or request.around is not None else {}
    consumers: dict[tuple[int, int], dict[int, None]] = defaultdict(dict)
    for i, node in enumerate(nodes):
        for source in node.sources:
            consumers[source][i] = None
    size = sum(entry.bytes for entry in weights)
    everything = PartInfo("shared", None, weights, size, len(model.graph.initializer))
    return ModelInfo(
        name=path.stem,
        kind="onnx",
        ops=len(model.graph.node),
        inputs=tuple(_port(value) for value in _inputs(model.graph)),
        outputs=tuple(map(_port, model.graph.output)),
        op_counts=dict(Counter(_type(node) for node in model.graph.node).most_common()),
        attention={},
        states=(),
        weights=weights,
        rt_info=_metadata(model),
        why_not="an ONNX file: layers, states and grafts are read from an OpenVINO IR only",
        parts=(everything,) if request.weights and weights else (),
        nodes=tuple(_node_info(nodes, consumers, i, distance) for i, distance in asked.items()),
        graph=_graph(nodes) if request.graph else None,
    )


class _Node:
    """An input, an initializer or an op, numbered in the order of the file."""

    __slots__ = ("attributes", "bytes", "name", "opset", "outputs", "sources", "type")

    def __init__(self, name: str, kind: str, outputs: Sequence[str]) -> None:
        self.name = name
        self.type = kind
        self.outputs = [(output, "", "") for output in outputs]
        self.sources: list[tuple[int, int]] = []
        self.attributes: dict[str, Any] = {}
        self.bytes: int | None = None
        self.opset = ""


def _load(path: Path) -> onnx.ModelProto:
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # protobuf has errors of its own
        raise ModelFileError("not an ONNX model, or a damaged one", file=path) from error
    if not model.ir_version or not model.HasField("graph"):
        raise ModelFileError("not an ONNX model: it has no graph", file=path)
    return model


def _inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Without initializers, which old files list among the inputs."""
    stored = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in stored]


def _type(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else str(node.op_type)


def _element_type(number: int) -> str:
    import onnx

    try:
        name = str(onnx.TensorProto.DataType.Name(number))
    except ValueError:
        return f"type {number}"
    short = name.replace("UINT", "u").replace("INT", "i").replace("FLOAT", "f").lower()
    return _OPENVINO_NAMES.get(name, short)


def _bytes(tensor: onnx.TensorProto) -> int:
    """Stored size, by shape and type."""
    count = 1
    for length in tensor.dims:
        count *= length
    name = _element_type(tensor.data_type)
    digits = re.match(r"[a-z]+(\d+)", name)
    bits = _BITS.get(name, int(digits[1]) if digits else 8)
    return int((count * bits + 7) // 8)


def _formats(tensors: Iterable[onnx.TensorProto]) -> tuple[FormatInfo, ...]:
    return by_format((_element_type(tensor.data_type), _bytes(tensor)) for tensor in tensors)


def _port(value: onnx.ValueInfoProto) -> PortInfo:
    return PortInfo((value.name,), *_type_and_shape(value))


def _type_and_shape(value: onnx.ValueInfoProto) -> tuple[str, str]:
    if not value.type.HasField("tensor_type"):
        return str(value.type.WhichOneof("value") or "unknown"), ""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return _element_type(tensor.elem_type), "[...]"
    sizes = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
    return _element_type(tensor.elem_type), f"[{','.join(sizes)}]"


def _metadata(model: onnx.ModelProto) -> dict[str, str]:
    found = {f"opset/{opset.domain or 'ai.onnx'}": str(opset.version) for opset in model.opset_import}
    found["ir_version"] = str(model.ir_version)
    if model.producer_name:
        found["producer"] = f"{model.producer_name} {model.producer_version}".strip()
    return found | {f"metadata/{entry.key}": entry.value for entry in model.metadata_props}


def _nodes(model: onnx.ModelProto) -> list[_Node]:
    """Inputs, initializers, then ops; an edge to a name nothing writes leads nowhere (-1)."""
    graph = model.graph
    known = {value.name: _type_and_shape(value) for value in (*graph.input, *graph.value_info, *graph.output)}
    found = [_Node(value.name, "Input", [value.name]) for value in _inputs(graph)]
    for tensor in graph.initializer:
        node = _Node(tensor.name, "Initializer", [tensor.name])
        node.bytes = _bytes(tensor)
        known[tensor.name] = _element_type(tensor.data_type), f"[{','.join(map(str, tensor.dims))}]"
        found.append(node)
    versions = {opset.domain or "ai.onnx": opset.version for opset in model.opset_import}
    first_op = len(found)
    for op in graph.node:
        node = _Node(op.name or next(iter(op.output), ""), _type(op), op.output)
        domain = op.domain or "ai.onnx"
        node.opset = f"{domain} {versions.get(domain, '?')}"
        found.append(node)
    written = {name: (i, port) for i, node in enumerate(found) for port, (name, _, _) in enumerate(node.outputs)}
    for op, node in zip(graph.node, found[first_op:], strict=True):
        node.sources = [written.get(name, (-1, 0)) for name in op.input if name]
        node.attributes = {attribute.name: _attribute(attribute) for attribute in op.attribute}
    for node in found:
        node.outputs = [(name, *known.get(name, ("", ""))) for name, _, _ in node.outputs]
    return found


def _attribute(attribute: onnx.AttributeProto) -> Any:
    import onnx

    kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
    if kind in ("TENSOR", "SPARSE_TENSOR", "GRAPH", "GRAPHS", "TENSORS", "TYPE_PROTO"):
        return kind.lower().replace("_", " ")
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (int, float, str)):
        return value
    return [part.decode("utf-8", "backslashreplace") if isinstance(part, bytes) else part for part in value]


def _ref(nodes: Sequence[_Node], i: int) -> NodeRef:
    return NodeRef(nodes[i].name, nodes[i].type, i)


def _node_info(
    nodes: Sequence[_Node], consumers: Mapping[tuple[int, int], Iterable[int]], i: int, distance: int | None
) -> NodeInfo:
    node = nodes[i]
    sources = [(nodes[s].outputs[port], s, port) if s >= 0 else (("", "", ""), s, port) for s, port in node.sources]
    return NodeInfo(
        node=_ref(nodes, i),
        opset=node.opset,
        attributes=node.attributes,
        inputs=tuple(
            SourceInfo(_ref(nodes, s) if s >= 0 else None, port, kind, shape) for (_, kind, shape), s, port in sources
        ),
        outputs=tuple(
            OutputInfo((name,), kind, shape, tuple(_ref(nodes, c) for c in consumers.get((i, port), ())))
            for port, (name, kind, shape) in enumerate(node.outputs)
        ),
        bytes=node.bytes,
        distance=distance,
    )


def _graph(nodes: Sequence[_Node]) -> GraphInfo:
    return GraphInfo(
        names=tuple(node.name for node in nodes),
        types=tuple(node.type for node in nodes),
        outputs=tuple(" ".join(node.outputs[0][1:]).strip() if node.outputs else "" for node in nodes),
        inputs=tuple(tuple(source for source, _ in node.sources if source >= 0) for node in nodes),
    )
