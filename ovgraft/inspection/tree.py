"""What an inspection found, as data.

The JSON form is these fields under ``"schema": 1``; renderers read nothing else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ovgraft.errors import Reason
from ovgraft.inspection.tree_nodes import GraphInfo, NodeInfo
from ovgraft.noderef import NodeRef

SCHEMA = 1

AnnotationStatus = Literal["absent", "valid", "invalid", "unchecked"]
PagingStatus = Literal["ready", "not ready", "paged"]


@dataclass(frozen=True)
class FileInfo:
    """A file of a package.

    Attributes:
        name: Without folder.
        bytes: Size on disk.
    """

    name: str
    bytes: int


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


@dataclass(frozen=True)
class LayerDetails:
    """What is asked for of a layer beyond its place.

    Attributes:
        boundary: The tensor that leaves the layer.
        attention: Its attention ops; attention written out in small ops is not among them.
        weights: Constants that only this layer uses, most bytes first.
        bytes: All of them together.
    """

    boundary: PortInfo
    attention: tuple[AttentionInfo, ...]
    weights: tuple[FormatInfo, ...]
    bytes: int


@dataclass(frozen=True)
class LayerInfo:
    """One decoder layer.

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
class PartInfo:
    """The weights of one part of a model.

    Attributes:
        part: ``embedding``, ``layer``, ``lm_head``, ``outputs`` (on the way from layers to another output, such as an
            FC that was moved in), or ``shared``: outside the layers, or used by several of them.
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
class AnnotationInfo:
    """``hidden_states_decoder_layers``.

    Attributes:
        status: ``unchecked`` when the structure could not be read.
        layers: Entries in it.
        message: What is wrong, or what was found to agree.
    """

    status: AnnotationStatus
    layers: int = 0
    message: str = ""


@dataclass(frozen=True)
class FactInfo:
    """One value of a draft's metadata or of the graft record, and where it was read."""

    name: str
    value: str
    source: str


@dataclass(frozen=True)
class PagingInfo:
    """How the model stands to PagedAttention.

    Attributes:
        status: ``ready`` when nothing in the graph speaks against a conversion.
        reasons: Why it is not ready.
        ops: Paged op type -> how many, for a paged model.
        tables: Inputs that hold caches and states, for a paged model.
    """

    status: PagingStatus
    reasons: tuple[Reason, ...] = ()
    ops: dict[str, int] = field(default_factory=dict)
    tables: tuple[PortInfo, ...] = ()


@dataclass(frozen=True)
class ModelInfo:
    """One IR.

    Attributes:
        name: File stem.
        kind: What it looks like, see :data:`ovgraft.drafts.kinds.ModelKind`.
        why_not: For ``other``: why it is no language model.
        last_hidden_state: What enters the output layer: the hidden state of the last layer, by convention.
        structure_error: A decoder whose layers the structure does not tell.
        ops: OpenVINO ops, constants included.
        op_counts: Op type -> how many.
        attention: Op type of each attention or recurrent op -> how many.
        rt_info: Model-level metadata, path joined with ``/`` -> text.
        graft: What ovgraft wrote into it.
        parts: Weights by part of the model, on request.
        nodes: The nodes that were asked for.
        graph: All nodes, on request.
    """

    name: str
    kind: str
    ops: int
    inputs: tuple[PortInfo, ...]
    outputs: tuple[PortInfo, ...]
    op_counts: dict[str, int]
    attention: dict[str, int]
    states: tuple[StateInfo, ...]
    weights: tuple[FormatInfo, ...]
    rt_info: dict[str, str]
    why_not: str = ""
    layers: tuple[LayerInfo, ...] = ()
    embedding: TableInfo | None = None
    lm_head: TableInfo | None = None
    last_hidden_state: NodeRef | None = None
    structure_error: tuple[Reason, ...] = ()
    annotation: AnnotationInfo | None = None
    paging: PagingInfo | None = None
    draft: tuple[FactInfo, ...] = ()
    graft: tuple[FactInfo, ...] = ()
    parts: tuple[PartInfo, ...] = ()
    nodes: tuple[NodeInfo, ...] = ()
    graph: GraphInfo | None = None


@dataclass(frozen=True)
class CheckpointInfo:
    """A draft checkpoint.

    Attributes:
        facts: Its normal form, each value with the file and key it came from.
        warnings: What a user should know.
        spec: The normal form as JSON.
    """

    facts: tuple[FactInfo, ...]
    warnings: tuple[str, ...]
    spec: dict[str, Any]


@dataclass(frozen=True)
class PackageInfo:
    """A folder or one .xml.

    Attributes:
        name: Last part of the path.
        role: ``target`` or ``draft`` inside a graft folder, else empty.
        files: All files of the folder, by name; of a single .xml that and its .bin.
        models: The main model first.
        problems: What does not fit together, one sentence each.
        checkpoint: For a folder with a checkpoint instead of models.
    """

    name: str
    role: str
    files: tuple[FileInfo, ...]
    models: tuple[ModelInfo, ...]
    problems: tuple[str, ...] = ()
    checkpoint: CheckpointInfo | None = None


@dataclass(frozen=True)
class Inspection:
    """Everything found at one path.

    Attributes:
        packages: One, or target and draft.
        record: The content of ``graft.json``, None without one.
    """

    packages: tuple[PackageInfo, ...]
    record: dict[str, object] | None = None
    schema: int = SCHEMA

    def to_dict(self) -> dict[str, object]:
        """The JSON form, schema first."""
        packages = tuple(
            replace(package, models=tuple(replace(model, graph=None) for model in package.models))
            for package in self.packages
        )
        content = asdict(replace(self, packages=packages))
        for package in content["packages"]:
            for model in package["models"]:
                del model["graph"]
        return {"schema": content.pop("schema"), **content}
