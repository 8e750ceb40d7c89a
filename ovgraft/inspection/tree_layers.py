"""Ports, layers, states, tables and weights, as data."""

from __future__ import annotations

from dataclasses import dataclass

from ovgraft.noderef import NodeRef


@dataclass(frozen=True)
class PortInfo:
    """An input or output of the model.

    Attributes:
        names: All tensor names, the shown one first.
        element_type: OpenVINO type name.
        shape: For example ``[?,?,64]``.
    """

    names: tuple[str, ...]
    element_type: str
    shape: str


@dataclass(frozen=True)
class CacheInfo(PortInfo):
    """An input that holds caches or states, of a paged model.

    Attributes:
        layer: The layer that uses it; None when several do, or nobody asked.
    """

    layer: int | None = None


@dataclass(frozen=True)
class FormatInfo:
    """Constants of one element type."""

    element_type: str
    bytes: int
    constants: int


@dataclass(frozen=True)
class AttentionInfo:
    """One attention op; a size is None where the graph does not fix it.

    Attributes:
        node: ScaledDotProductAttention or PagedAttentionExtension.
        heads: Query heads.
        kv_heads: Heads of keys and values.
        head_size: Size of a query and key head.
        value_head_size: Size of a value head.
        window: Keys a query sees at most, itself included; None when the mask names no such number.
        sinks: Whether it has attention sinks.
        states: Ids of the variables it reads, in paged form names of its cache inputs: keys, then values.
        state_layer: The layer that updates them, another one's under KV sharing.
        bidirectional: Whether a row of a DFlash block sees the rows behind it in the block; None for other models, and
            where the mask does not tell.
    """

    node: NodeRef
    heads: int | None
    kv_heads: int | None
    head_size: int | None
    value_head_size: int | None
    window: int | None
    sinks: bool
    states: tuple[str, ...]
    state_layer: int | None
    bidirectional: bool | None = None


@dataclass(frozen=True)
class LayerDetails:
    """What is asked for of a layer beyond its place.

    Attributes:
        boundary: The tensor that leaves the layer.
        attention: Its attention ops; attention written out in small ops is not among them.
        weights: Constants that only this layer uses, most bytes first.
        bytes: All of them together.
        inputs: Inputs of the model whose rows reach this layer through no other one: of layer 0 first the one that the
            residual stream begins at, then those that enter from the side, such as a context.
    """

    boundary: PortInfo
    attention: tuple[AttentionInfo, ...]
    weights: tuple[FormatInfo, ...]
    bytes: int
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerInfo:
    """One layer of a decoder or a draft.

    Attributes:
        index: From 0.
        kind: ``attention``, ``linear_attention``, ``convolution``, ``state_space``, ...
        producer: The node whose output leaves the layer, raw.
        output_index: Which output of it.
        attention: The attention ops inside.
        states: Variable ids inside.
        details: On request.
    """

    index: int
    kind: str
    producer: NodeRef
    output_index: int
    attention: tuple[NodeRef, ...]
    states: tuple[str, ...]
    details: LayerDetails | None = None


@dataclass(frozen=True)
class StateInfo:
    """A variable that lives between inferences.

    Attributes:
        id: Variable id.
        element_type: OpenVINO type name.
        shape: For example ``[?,2,?,16]``.
        layer: The layer that updates it; None when none does or nobody asked.
        readers: The layers that read it, on request.
    """

    id: str
    element_type: str
    shape: str
    layer: int | None = None
    readers: tuple[int, ...] = ()


@dataclass(frozen=True)
class TableInfo:
    """The token embedding or the output layer.

    Attributes:
        node: The Gather or MatMul.
        vocab_size: Rows, padding included.
        width: Columns.
        format: Element type of the stored weights.
        bytes: Stored size, scales and zero points included.
        scale: What the embedding is multiplied by before the first layer, None when by nothing.
        extras: What stands between the MatMul and the logits, in words.
        tied: The output layer reads the embedding's own constants.
    """

    node: NodeRef
    vocab_size: int
    width: int
    format: str
    bytes: int
    scale: float | None = None
    extras: tuple[str, ...] = ()
    tied: bool = False


@dataclass(frozen=True)
class FcInfo:
    """The projection of the target's states in a draft.

    Attributes:
        node: The MatMul.
        in_width: Columns: captured layers times the target's width.
        out_width: Rows, the draft's width.
        format: Element type of the stored weights.
        bytes: Stored size, scales, zero points and bias included.
        bias: Whether it has one.
    """

    node: NodeRef
    in_width: int
    out_width: int
    format: str
    bytes: int
    bias: bool


@dataclass(frozen=True)
class PartInfo:
    """The weights of one part of a model.

    Attributes:
        part: ``embedding``, ``layer``, ``lm_head``, ``fc`` (of a draft), ``outputs`` (on the way from layers to another
            output, such as an FC that was moved in), or ``shared``: outside the layers, or used by several of them. Of
            a checkpoint also ``markov head``, ``candidate selector``, ``confidence head`` and ``vocabulary map``.
        layer: Which layer, None for other parts.
        formats: Most bytes first.
        bytes: All of them together.
        constants: How many.
    """

    part: str
    layer: int | None
    formats: tuple[FormatInfo, ...]
    bytes: int
    constants: int


@dataclass(frozen=True)
class CheckpointLayer:
    """One layer of a draft checkpoint, by its config and the headers of its tensors.

    Attributes:
        index: From 0.
        kind: How it mixes positions: ``attention``, with ``+convolution`` where convolutions are around its branches.
        heads: Query heads.
        kv_heads: Heads of keys and values.
        head_size: Size of a query and key head.
        value_head_size: Size of a value head.
        window: Keys a query sees at most, itself included; None for all.
        bidirectional: Whether a row of a block sees the rows behind it in the block.
        weights: Its tensors, most bytes first.
        bytes: All of them together.
    """

    index: int
    kind: str
    heads: int
    kv_heads: int
    head_size: int
    value_head_size: int
    window: int | None
    bidirectional: bool
    weights: tuple[FormatInfo, ...]
    bytes: int
