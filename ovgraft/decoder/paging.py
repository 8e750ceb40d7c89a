"""Will a decoder convert to PagedAttention, and did a conversion keep what it computed?

OpenVINO's own transformation answers the first question with an exception and the second not at all. Both answers here
are lists of reasons. Source of the matching rules: OpenVINO's StateManagementPattern and the passes around it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset

from ovgraft.drafts.contract import Port
from ovgraft.errors import Reason
from ovgraft.ir.graph import Graph

ATTENTION = "ScaledDotProductAttention"
PAGED_ATTENTION = "PagedAttentionExtension"
PAGED_TYPES = (PAGED_ATTENTION, "PagedCausalConv1D", "PagedGatedDeltaNet", "PagedSelectiveSSM")

HEAD_SIZES = ("k_head_size", "num_k_heads", "v_head_size", "num_v_heads")
"""Node rt_info the CPU plugin needs on every PagedAttention op, integers; OpenVINO loses them on save."""

_BETWEEN_CACHE_AND_ATTENTION = {
    "Broadcast",
    "Convert",
    "FakeConvert",
    "FakeQuantize",
    "Reshape",
    "StridedSlice",
    "Transpose",
    "Unsqueeze",
    "VariadicSplit",
}


class PagedInput:
    """Input numbers of PagedAttentionExtension."""

    QUERY = 0
    KEY_CACHE = 3
    SCALE = 9
    SLIDING_WINDOW = 10
    ALIBI_SLOPES = 11
    SINKS = 20
    TOKEN_TYPE_IDS = 25


def readiness(graph: Graph) -> list[Reason]:
    """Why a model will not convert to PagedAttention; empty when nothing speaks against it.

    Only the graph is read, nothing is run. What OpenVINO's matcher refuses beyond this is found by converting.

    Args:
        graph: View of the model.
    """
    paged = [i for i, kind in enumerate(graph.types) if kind in PAGED_TYPES]
    if paged:
        refs = tuple(graph.ref(i) for i in paged[:3])
        return [Reason("already-paged", f"the model is in PagedAttention form already, {len(paged)} paged ops", refs)]
    return [
        *_about_state(graph),
        *_about_ports(graph),
        *_about_attention(graph),
    ]


def _about_state(graph: Graph) -> list[Reason]:
    if graph.find("ReadValue"):
        return []
    return [
        Reason(
            "stateless",
            "the model keeps no cache variables; export it with a stateful cache (task text-generation-with-past)",
        )
    ]


def _about_ports(graph: Graph) -> list[Reason]:
    reasons = []
    names = {name for port in graph.model.inputs for name in port.get_names()}
    if not names & {Port.INPUT_IDS, Port.INPUTS_EMBEDS}:
        have = ", ".join(sorted(names)) or "none"
        reasons.append(Reason("no-token-input", f"no input is called input_ids or inputs_embeds (inputs: {have})"))
    for port in graph.model.inputs:
        rank = port.get_partial_shape().rank
        if Port.POSITION_IDS in port.get_names() and (rank.is_dynamic or rank.get_length() not in (2, 3)):
            shape = port.get_partial_shape()
            reasons.append(
                Reason(
                    "position-ids-rank",
                    f"position_ids must have rank 2 or 3, it has shape {shape}",
                    (graph.ref(graph.index(port.get_node())),),
                )
            )
    for result in graph.find("Result"):
        source = graph.inputs[result][0][0]
        if (
            graph.types[source] == "Parameter"
            and {Port.ATTENTION_MASK, Port.BEAM_IDX} & graph.nodes[source].output(0).get_names()
        ):
            reasons.append(
                Reason(
                    "extra-consumer",
                    f"'{graph.names[source]}' is also an output",
                    (graph.ref(source), graph.ref(result)),
                )
            )
    return reasons


def _about_attention(graph: Graph) -> list[Reason]:
    reasons = []
    attention = graph.find(ATTENTION)
    decomposed = decomposed_attention(graph)
    if not attention and not decomposed:
        return [Reason("no-attention", "the model has no ScaledDotProductAttention")]
    if decomposed:
        count = f"{len(decomposed)} of {len(decomposed) + len(attention)} attention blocks are"
        refs = tuple(graph.ref(i) for i in decomposed[:4])
        reasons.append(
            Reason(
                "decomposed-attention", f"{count} written as MatMul, Softmax, MatMul; run fuse-attention first", refs
            )
        )
    for i in attention:
        node = graph.nodes[i]
        if node.get_input_size() == 3:
            reasons.append(Reason("no-mask", "attention without a mask input is not converted", (graph.ref(i),)))
        for port, what in ((1, "key"), (2, "value")):
            concat = _cache_concat(graph, i, port)
            if concat is None:
                reasons.append(
                    Reason(
                        "unmatched-state",
                        f"the {what} of an attention op is not Concat(Gather(ReadValue, beam_idx), new rows)",
                        (graph.ref(i),),
                    )
                )
                continue
            shape = graph.nodes[concat].get_output_partial_shape(0)
            if shape.rank.is_static and shape.rank.get_length() == 4:
                axes = sorted(axis for axis in (1, 2, 3) if shape[axis].is_dynamic)
                if len(axes) > 1:
                    reasons.append(
                        Reason(
                            "dynamic-heads",
                            f"{what} heads and head size must be static, the cached {what} has shape {shape}",
                            (graph.ref(concat),),
                        )
                    )
    return reasons


def _cache_concat(graph: Graph, attention: int, port: int) -> int | None:
    """The Concat that joins cached and new rows for one input of an attention op; None where there is no such."""
    i = graph.inputs[attention][port][0]
    for _ in range(16):
        if graph.types[i] == "Concat":
            first = graph.inputs[i][0][0]
            while graph.types[first] in ("Convert", "Transpose", "Reshape"):
                first = graph.inputs[first][0][0]
            if graph.types[first] == "Gather" and graph.types[graph.inputs[first][0][0]] == "ReadValue":
                return i
            return None
        if graph.types[i] not in _BETWEEN_CACHE_AND_ATTENTION:
            return None
        i = graph.inputs[i][0][0]
    return None


def decomposed_attention(graph: Graph) -> list[int]:
    """Softmax nodes that normalise attention scores: MatMul before, through elementwise ops, and MatMul after.

    A mixture-of-experts router also has a Softmax, but its scores come from constant weights.
    """
    return [
        i for i in graph.find("Softmax") if _scores_matmul(graph, i) is not None and _value_matmul(graph, i) is not None
    ]


def _scores_matmul(graph: Graph, softmax: int) -> int | None:
    i = graph.inputs[softmax][0][0]
    for _ in range(12):
        if graph.types[i] == "MatMul":
            return i if all(not _from_constants(graph, source) for source, _ in graph.inputs[i]) else None
        if graph.types[i] not in {
            "Add",
            "Multiply",
            "Divide",
            "Convert",
            "Reshape",
            "Select",
            "Where",
            "Subtract",
            "Tanh",
            "Maximum",
        }:
            return None
        real = [source for source, port in graph.inputs[i] if graph.is_real(source, port)]
        heads = [source for source in real if not _from_constants(graph, source)]
        reaching = [source for source in heads if _reaches_matmul(graph, source)]
        if not reaching:
            return None
        i = reaching[0]
    return None


def _reaches_matmul(graph: Graph, i: int, depth: int = 8) -> bool:
    """Whether walking back over elementwise ops meets a MatMul; a mask never does."""
    if graph.types[i] == "MatMul":
        return True
    if depth == 0 or graph.types[i] not in {
        "Add",
        "Multiply",
        "Divide",
        "Convert",
        "Reshape",
        "Select",
        "Subtract",
        "Tanh",
    }:
        return False
    return any(_reaches_matmul(graph, source, depth - 1) for source, _ in graph.inputs[i])


def _value_matmul(graph: Graph, softmax: int) -> int | None:
    i = softmax
    for _ in range(6):
        users = [(user, port) for _, user, port in graph.consumers[i]]
        if len(users) != 1:
            return None
        i, port = users[0]
        if graph.types[i] == "MatMul":
            return i if port == 0 and not _from_constants(graph, graph.inputs[i][1][0]) else None
        if graph.types[i] not in {"Convert", "Reshape", "Slice", "StridedSlice", "Dropout"}:
            return None
    return None


def _from_constants(graph: Graph, i: int, depth: int = 12) -> bool:
    """Whether a node is a constant or a short chain over constants, such as a decompressed weight."""
    if graph.types[i] == "Constant":
        return True
    if depth == 0 or not graph.inputs[i]:
        return False
    return all(_from_constants(graph, source, depth - 1) for source, _ in graph.inputs[i])


@dataclass(frozen=True)
class PagedOp:
    """One PagedAttentionExtension as it will run.

    Attributes:
        node: The op.
        window: Sliding window, 0 for none.
        alibi_slopes: One slope a head, empty for none.
        sinks: Whether attention sinks are connected.
        token_types: Whether ``token_type_ids`` is connected.
    """

    node: ov.Node
    window: int
    alibi_slopes: tuple[float, ...]
    sinks: bool
    token_types: bool


def read_paged(node: ov.Node) -> PagedOp:
    """Read what one PagedAttentionExtension was told."""
    sinks = node.input_value(PagedInput.SINKS).get_partial_shape()
    types = node.input_value(PagedInput.TOKEN_TYPE_IDS).get_partial_shape()
    return PagedOp(
        node,
        window=int(fold(node.input_value(PagedInput.SLIDING_WINDOW)).item()),
        alibi_slopes=tuple(float(v) for v in fold(node.input_value(PagedInput.ALIBI_SLOPES)).ravel()),
        sinks=all(dim.is_dynamic or dim.get_length() > 0 for dim in sinks),
        token_types=types.is_dynamic or types[0].get_length() > 0,
    )


def fold(output: ov.Output) -> npt.NDArray[np.generic]:
    """The value of an output that depends on constants alone.

    Raises:
        ValueError: It depends on an input.
    """
    node = output.get_node()
    if node.get_type_name() == "Constant":
        return np.asarray(node.data)
    shape = output.get_partial_shape()
    tensor = ov.Tensor(output.get_element_type(), shape.to_shape() if shape.is_static else ov.Shape([0]))
    try:
        done = ov.Model([opset.result(output)], [], "constant").evaluate([tensor], [])
    except RuntimeError as error:
        raise ValueError(f"{node.get_type_name()} '{node.get_friendly_name()}' is not constant") from error
    if not done:
        raise ValueError(f"{node.get_type_name()} '{node.get_friendly_name()}' could not be evaluated")
    return np.array(tensor.data)
