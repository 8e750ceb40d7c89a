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

from ovgraft.decoder.decomposed import find_decomposed
from ovgraft.drafts.contract import Port
from ovgraft.errors import Reason
from ovgraft.ir.graph import Graph
from ovgraft.ir.head_sizes import PAGED_ATTENTION

ATTENTION = "ScaledDotProductAttention"
PAGED_TYPES = (PAGED_ATTENTION, "PagedCausalConv1D", "PagedGatedDeltaNet", "PagedSelectiveSSM")

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
        if not port.get_names():
            ref = graph.ref(graph.index(port.get_node()))
            reasons.append(Reason("nameless-input", "an input has no tensor name: no host could feed it", (ref,)))
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
    fusible, unfusible = find_decomposed(graph)
    written_out = len(fusible) + len(unfusible)
    if not attention and not written_out:
        return [Reason("no-attention", "the model has no ScaledDotProductAttention")]
    if fusible:
        total = written_out + len(attention)
        text = f"{len(fusible)} of {total} attention blocks are written out; run fuse-attention first"
        reasons.append(Reason("decomposed-attention", text, tuple(graph.ref(match.softmax) for match in fusible[:4])))
    reasons += unfusible
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
