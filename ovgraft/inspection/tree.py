"""What an inspection found, as data.

The JSON form is these fields under ``"schema": 1``; renderers read nothing else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ovgraft.errors import Reason
from ovgraft.inspection.tree_layers import (
    CacheInfo,
    CheckpointLayer,
    FcInfo,
    FormatInfo,
    LayerInfo,
    PartInfo,
    PortInfo,
    StateInfo,
    TableInfo,
)
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
    tables: tuple[CacheInfo, ...] = ()


@dataclass(frozen=True)
class ModelInfo:
    """One IR.

    Attributes:
        name: File stem.
        kind: What it looks like, see :data:`ovgraft.drafts.kinds.ModelKind`.
        why_not: For ``other``: why it is no language model.
        last_hidden_state: What enters the output layer, or leaves a draft without one: the hidden state of the last
            layer, by convention.
        structure_error: A decoder or draft whose layers the structure does not tell.
        width: Of the rows between layers, H; None where there are no layers or the shape does not say.
        fc: The projection of the target's states, of a draft that has one.
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
    width: int | None = None
    fc: FcInfo | None = None
    annotation: AnnotationInfo | None = None
    paging: PagingInfo | None = None
    draft: tuple[FactInfo, ...] = ()
    graft: tuple[FactInfo, ...] = ()
    parts: tuple[PartInfo, ...] = ()
    nodes: tuple[NodeInfo, ...] = ()
    graph: GraphInfo | None = None

    @property
    def title(self) -> str:
        """What people call it: the kind, of drafts the family."""
        family = next((fact.value for fact in self.draft if fact.name == "family"), None)
        return self.kind if family is None else f"{family} draft"


@dataclass(frozen=True)
class CheckpointInfo:
    """A draft checkpoint.

    Attributes:
        facts: Its normal form, each value with the file and key it came from.
        warnings: What a user should know.
        spec: The normal form as JSON.
        layers: Its layers.
        weights: All tensors by format, most bytes first.
        parts: Tensors by part of the draft, most bytes first.
    """

    facts: tuple[FactInfo, ...]
    warnings: tuple[str, ...]
    spec: dict[str, Any]
    layers: tuple[CheckpointLayer, ...] = ()
    weights: tuple[FormatInfo, ...] = ()
    parts: tuple[PartInfo, ...] = ()


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
