"""OpenVINO's PagedAttention transformation, and what has to be done around it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import openvino as ov
from openvino import opset13 as opset
from openvino._offline_transformations import paged_attention_transformation

from ovgraft.decoder.masks import MaskFacts, read_masks
from ovgraft.decoder.paging import (
    ATTENTION,
    PAGED_TYPES,
    PagedInput,
    fold,
    read_paged,
)
from ovgraft.drafts.contract import Port
from ovgraft.errors import Reason, StructureError
from ovgraft.ir.graph import Graph
from ovgraft.ir.head_sizes import PAGED_ATTENTION
from ovgraft.ir.refs import node_ref


@dataclass(frozen=True)
class AttentionFacts:
    """What one ScaledDotProductAttention computes beside its product.

    Attributes:
        name: Its friendly name.
        mask: What its mask lets through.
        scale: The factor on the scores; None when it is not a constant.
        sinks: Whether it has attention sinks.
    """

    name: str
    mask: MaskFacts
    scale: float | None
    sinks: bool


@dataclass(frozen=True)
class Converted:
    """A paged model.

    Attributes:
        model: The model.
        attention: Its PagedAttentionExtension ops, in the order of the attention ops they came from.
        counts: Paged ops by type.
    """

    model: ov.Model
    attention: tuple[ov.Node, ...]
    counts: dict[str, int]


def attention_facts(graph: Graph) -> list[AttentionFacts]:
    """Read every attention op of a stateful model, in topological order."""
    nodes = [graph.nodes[i] for i in graph.find(ATTENTION)]
    return [
        AttentionFacts(node.get_friendly_name(), _slope_a_head(mask, node), _scale(node), node.get_input_size() > 5)
        for node, mask in zip(nodes, read_masks(nodes), strict=True)
    ]


def _slope_a_head(mask: MaskFacts, node: ov.Node) -> MaskFacts:
    """A mask whose one slope for all heads is written head by head, as the paged op wants it."""
    slopes, heads = mask.alibi_slopes, node.input_value(0).get_partial_shape()[1]
    if not slopes or mask.problem is not None:
        return mask
    if heads.is_dynamic:
        return replace(mask, problem="the mask adds ALiBi slopes to a number of heads that is not static")
    if len(slopes) not in (1, heads.get_length()):
        return replace(mask, problem=f"the mask has {len(slopes)} ALiBi slopes for {heads} heads")
    return replace(mask, alibi_slopes=slopes if len(slopes) > 1 else slopes * heads.get_length())


def _scale(node: ov.Node) -> float | None:
    if node.get_input_size() > 4:
        try:
            return float(fold(node.input_value(4)).item())
        except ValueError:
            return None
    head_size = node.input_value(0).get_partial_shape()[-1]
    return head_size.get_length() ** -0.5 if head_size.is_static else None


def match_port_names(model: ov.Model) -> list[str]:
    """Give every input node the name of its tensor: the transformation finds inputs by one and decides by the other.

    Returns:
        The names that were set.
    """
    renamed = []
    for parameter in model.get_parameters():
        wanted = next((name for name in sorted(parameter.output(0).get_names()) if name in tuple(Port)), None)
        if wanted is not None and parameter.get_friendly_name() != wanted:
            parameter.set_friendly_name(wanted)
            renamed.append(wanted)
    return renamed


def convert_to_paged(model: ov.Model, options: Mapping[str, bool]) -> Converted:
    """Run OpenVINO's transformation in place; a model it fails on is left half converted, so pass a clone.

    Args:
        model: A stateful decoder.
        options: Keyword arguments of ``paged_attention_transformation``.

    Raises:
        StructureError: The transformation refuses; the nodes that were not matched are named.
    """
    attention = [node for node in model.get_ordered_ops() if node.get_type_name() == ATTENTION]
    queries = {node.input_value(0).get_node().get_instance_id(): i for i, node in enumerate(attention)}
    try:
        paged_attention_transformation(model, **options)
    except RuntimeError as error:
        raise StructureError(
            "OpenVINO's PagedAttention transformation refuses the model",
            reasons=tuple(_native_reasons(model, str(error))),
        ) from error
    found: dict[int, ov.Node] = {}
    counts: Counter[str] = Counter()
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        counts[kind] += kind in PAGED_TYPES
        if kind == PAGED_ATTENTION:
            origin = _origin(node, queries)
            if origin is None or origin in found:
                raise StructureError("a paged op cannot be traced to one attention op", node=node_ref(node))
            found[origin] = node
    if len(found) != len(attention):
        missing = tuple(node_ref(node) for i, node in enumerate(attention) if i not in found)
        raise StructureError(
            "not every attention op was converted",
            expected=len(attention),
            found=len(found),
            reasons=(Reason("unconverted-attention", "attention left as it was", missing),),
        )
    by_type = {kind: counts[kind] for kind in PAGED_TYPES if counts[kind]}
    return Converted(model, tuple(found[i] for i in range(len(attention))), by_type)


def _origin(paged: ov.Node, queries: Mapping[int, int]) -> int | None:
    """Which attention op a paged one came from, told by the query it still reads."""
    node = paged.input_value(PagedInput.QUERY).get_node()
    for _ in range(8):
        if node.get_instance_id() in queries:
            return queries[node.get_instance_id()]
        if node.get_input_size() == 0:
            return None
        node = node.input_value(0).get_node()
    return None


def _native_reasons(model: ov.Model, text: str) -> list[Reason]:
    """OpenVINO's refusal as reasons; what still reads a dropped input is looked up in the half converted model."""
    undeclared = re.findall(r"opset\d+::Parameter (\S+) ", text) if "undeclared parameters" in text else []
    if not undeclared:
        return [Reason("native-refusal", text.strip().splitlines()[-1].strip())]
    reasons = []
    nodes = model.get_ordered_ops()
    for name in undeclared:
        users = tuple(
            node_ref(node)
            for node in nodes
            if any(source.get_node().get_friendly_name() == name for source in node.input_values())
        )
        reasons.append(
            Reason("extra-consumer", f"'{name}' is still needed after the attention ops were replaced", users[:4])
        )
    return reasons


def repair(node: ov.Node, facts: AttentionFacts) -> list[str]:
    """Put back what the transformation dropped from one paged op.

    Args:
        node: The PagedAttentionExtension.
        facts: What the attention it came from computes.

    Returns:
        What was put back, in words.
    """
    paged, mask, done = read_paged(node), facts.mask, []
    if mask.problem is not None:
        return []
    if mask.window and not paged.window:
        _set_constant(node, PagedInput.SLIDING_WINDOW, np.array(mask.window, np.int32), "sliding_window")
        done.append(f"sliding window {mask.window} put back")
    if mask.alibi_slopes and not paged.alibi_slopes:
        _set_constant(node, PagedInput.ALIBI_SLOPES, np.array(mask.alibi_slopes, np.float32), "alibi_slopes")
        done.append(f"{len(mask.alibi_slopes)} ALiBi slopes put back")
    if paged.token_types and not mask.token_types:
        _set_constant(node, PagedInput.TOKEN_TYPE_IDS, np.zeros(0, np.int32), "token_type_ids")
        done.append("token_type_ids disconnected, the mask does not read it")
    return done


def connect_token_types(model: ov.Model, nodes: list[ov.Node]) -> None:
    """Connect ``token_type_ids`` to paged ops whose mask read it, adding the input where the model lost it."""
    found = [p for p in model.get_parameters() if Port.TOKEN_TYPE_IDS in p.output(0).get_names()]
    if found:
        parameter = found[0]
    else:
        parameter = opset.parameter([-1], np.int32, name=Port.TOKEN_TYPE_IDS)
        parameter.output(0).set_names({Port.TOKEN_TYPE_IDS})
        model.add_parameters([parameter])
    flat = opset.reshape(parameter, opset.constant(np.array([-1], np.int64)), special_zero=False)
    types = opset.convert(flat, "i32").output(0)
    for node in nodes:
        node.input(PagedInput.TOKEN_TYPE_IDS).replace_source_output(types)
    model.validate_nodes_and_infer_types()


def _set_constant(node: ov.Node, port: int, value: np.ndarray, what: str) -> None:
    constant = opset.constant(value)
    constant.set_friendly_name(f"{node.get_friendly_name()}/{what}")
    node.input(port).replace_source_output(constant.output(0))


def differences(facts: AttentionFacts, node: ov.Node) -> list[str]:
    """What a paged op computes otherwise than the attention it came from; empty when it is the same."""
    mask, paged, found = facts.mask, read_paged(node), []
    if mask.problem is not None:
        return [mask.problem]
    if mask.window != paged.window:
        found.append(f"sliding window {mask.window or 'none'} became {paged.window or 'none'}")
    if len(mask.alibi_slopes) != len(paged.alibi_slopes) or not np.allclose(
        mask.alibi_slopes, paged.alibi_slopes, rtol=1e-3
    ):
        found.append(f"ALiBi slopes {_few(mask.alibi_slopes)} became {_few(paged.alibi_slopes)}")
    if mask.token_types != paged.token_types:
        found.append("token_type_ids is " + ("not connected" if mask.token_types else "connected, the mask ignores it"))
    if facts.sinks != paged.sinks:
        found.append("attention sinks were " + ("dropped" if facts.sinks else "added"))
    if facts.scale is None:
        found.append("the scale on the scores is not a constant")
    else:
        scale = float(fold(node.input_value(PagedInput.SCALE)).item())
        if not np.isclose(scale, facts.scale, rtol=1e-3):
            found.append(f"scale {facts.scale:g} became {scale:g}")
    return found


def _few(values: tuple[float, ...]) -> str:
    return (
        "none" if not values else ", ".join(f"{value:g}" for value in values[:3]) + (" ..." if len(values) > 3 else "")
    )


def position_problems(model: ov.Model) -> list[Reason]:
    """Positions the paged model makes up instead of reading ``position_ids``.

    A decoder that counts positions itself (past length + arange) is left with one position for all tokens of a step:
    the transformation makes tokens the batch, so every sequence is one token long.
    """
    inputs = {name: parameter for parameter in model.get_parameters() for name in parameter.output(0).get_names()}
    positions, length = inputs.get(Port.POSITION_IDS), inputs.get("max_context_len")
    if positions is None or length is None or positions.output(0).get_target_inputs():
        return []
    users = [target.get_node() for target in length.output(0).get_target_inputs()]
    others = tuple(node_ref(node) for node in users if node.get_type_name() not in PAGED_TYPES)
    if not others:
        return []
    text = "positions are counted from max_context_len instead of read from position_ids, wrong for more than one token"
    return [Reason("positions-not-read", text, others)]


def output_problems(before: ov.Model, after: ov.Model) -> list[Reason]:
    """Outputs that come out in another layout: rows are the first axis now, and not every value survives that.

    ``[B, S, ...]`` becomes ``[tokens, 1, ...]``; any other change means that the output mixed rows and batch.
    """
    reasons = []
    for old, new in zip(before.outputs, after.outputs, strict=False):
        shapes = old.get_partial_shape(), new.get_partial_shape()
        if _same_layout(*shapes):
            continue
        name = next(iter(sorted(old.get_names())), "(no name)")
        text = f"output {name} is {shapes[0]} before and {shapes[1]} in the paged form"
        reasons.append(Reason("output-layout", text, (node_ref(old.get_node()),)))
    return reasons


def _same_layout(old: ov.PartialShape, new: ov.PartialShape) -> bool:
    if old.is_static:
        return bool(old == new)  # a table, such as d2t
    if old.rank.is_dynamic or new.rank.is_dynamic or len(old) != len(new) or len(old) < 2:
        return False
    batch_and_rows = all(dim.is_dynamic or dim.get_length() == 1 for dim in list(old)[:2])
    return batch_and_rows and all(a.compatible(b) for a, b in zip(list(old)[2:], list(new)[2:], strict=True))


def name_new_nodes(model: ov.Model, before: Graph) -> None:
    """Name what the transformation made by place, not by its process counter, so that equal inputs give equal files."""
    known = set(before.names)
    counts: Counter[str] = Counter()
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind == PAGED_ATTENTION:
            node.set_friendly_name(f"paged_attention.{counts[kind]}")
        elif kind in ("Parameter", "Result"):
            continue
        elif node.get_friendly_name() not in known or node.get_friendly_name() == node.get_name():
            node.set_friendly_name(f"paged/{kind}.{counts[kind]}")
        else:
            continue
        counts[kind] += 1
