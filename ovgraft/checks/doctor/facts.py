"""What is known of a target and of a draft, exported or still a checkpoint, in one form for all checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openvino as ov

from ovgraft import decoder, drafts, ir
from ovgraft.checks.ports import static_last
from ovgraft.drafts.contract import Key, Port, RtPath
from ovgraft.drafts.kinds import draft_family, model_kind
from ovgraft.errors import CheckpointError, OvgraftError, PreconditionError, Reason, StructureError
from ovgraft.graft import Graft, Package
from ovgraft.passes.attach_embedding import target_embedding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class TargetFacts:
    """A target as read.

    Attributes:
        package: Where it lies.
        model: Its main IR.
        structure: Embedding, layers and output layer; None with ``error``.
        embedding: The token embedding, of the language model or of the IR beside it; None with ``embedding_error``.
        error: Why the graph is not read.
        embedding_error: Why no token embedding is found.
    """

    package: Package
    model: ov.Model
    structure: decoder.Decoder | None
    embedding: decoder.Embedding | None
    error: OvgraftError | None = None
    embedding_error: OvgraftError | None = None


@dataclass(frozen=True)
class DraftFacts:
    """A draft as read; what no source says is None.

    Attributes:
        package: Where it lies.
        family: ``dflash``, ``dflash2``, ``dspark`` or ``eagle3``.
        exported: The IR's own facts; None for a checkpoint.
        graph: Indexed view of the IR.
        fc: Its projection of the states, when that is still in the IR.
        fc_reasons: Why there is none, though none has moved.
        checkpoint: The checkpoint; None for an IR.
        layer_ids: Output-of-layer ids.
        source_ids: The ids as the file has them, and how it counts.
        mask_token_id: Of undecided block rows.
        block_size: Rows of a block as trained.
        offset: Block rows before the first candidate, as said or, where nothing says, as the exporter means.
        vocab_size: V it was made for.
        draft_vocab_size: Dv.
        offsets: ``d2t``.
        states_width: n * Ht it reads, through its FC or the one that moved.
        width: H.
        own_embedding: It carries a token embedding.
        own_lm_head: It carries an output layer.
        frozen_copies: Its tables are copies of the target's, which building leaves out.
        layer_count: Layers of the target it was trained on.
        error: Why it is not read.
    """

    package: Package
    family: str = ""
    exported: drafts.DraftIr | None = None
    graph: ir.Graph | None = None
    fc: drafts.HiddenStateFc | None = None
    fc_reasons: tuple[Reason, ...] = ()
    checkpoint: drafts.Checkpoint | None = None
    layer_ids: tuple[int, ...] | None = None
    source_ids: tuple[tuple[int, ...], str] | None = None
    mask_token_id: int | None = None
    block_size: int | None = None
    offset: int = 0
    vocab_size: int | None = None
    draft_vocab_size: int | None = None
    offsets: NDArray[np.int64] | None = None
    states_width: int | None = None
    width: int | None = None
    own_embedding: bool = False
    own_lm_head: bool = False
    frozen_copies: bool = False
    layer_count: int | None = None
    error: OvgraftError | None = None


@dataclass(frozen=True)
class PairFacts:
    """Both, and what an answer to one question leaves for the next."""

    graft: Graft
    target: TargetFacts
    draft: DraftFacts

    @property
    def structure(self) -> decoder.Decoder:
        """The target's structure; checks that use it come after the one that fails without it."""
        assert self.target.structure is not None
        return self.target.structure

    @property
    def embedding(self) -> decoder.Embedding:
        """The target's embedding, under the same rule."""
        assert self.target.embedding is not None
        return self.target.embedding

    def layers(self) -> tuple[int, ...] | None:
        """Output-of-layer ids the draft reads, with the default of Eagle-3 drafts that name none."""
        if self.draft.layer_ids is not None or self.draft.family != "eagle3":
            return self.draft.layer_ids
        return drafts.eagle3_default_layers(len(self.structure.layers))


def read_pair(graft: Graft) -> PairFacts:
    """Read both packages; what is wrong with them becomes part of the facts.

    Raises:
        ModelFileError: A file is missing or damaged, or the target is a checkpoint.
    """
    return PairFacts(graft, _read_target(graft.target), _read_draft(graft.package("draft")))


def _read_target(package: Package) -> TargetFacts:
    model = package.model
    try:
        structure = decoder.read_decoder(model)
    except StructureError as error:
        return TargetFacts(package, model, None, None, error, error)
    if structure.embedding is not None:
        return TargetFacts(package, model, structure, structure.embedding)
    try:
        return TargetFacts(package, model, structure, target_embedding(package))
    except PreconditionError as error:
        return TargetFacts(package, model, structure, None, None, error)


def _read_draft(package: Package) -> DraftFacts:
    if package.is_checkpoint and package.main_name not in package.models:
        return _of_checkpoint(package)
    model = package.model
    try:
        exported = drafts.read_draft(_readable(package, model))
    except PreconditionError as error:
        return DraftFacts(package, error=error)
    return _of_ir(package, model, exported)


def _of_checkpoint(package: Package) -> DraftFacts:
    try:
        checkpoint = drafts.read_checkpoint(package.folder)
    except CheckpointError as error:
        return DraftFacts(package, error=error)
    spec = checkpoint.spec
    ids = checkpoint.target_ids()
    return DraftFacts(
        package,
        family=str(spec.family),
        checkpoint=checkpoint,
        layer_ids=spec.layer_ids,
        source_ids=(spec.source_layer_ids, spec.layer_id_convention),
        mask_token_id=spec.mask_token_id,
        block_size=spec.block_size,
        offset=spec.candidate_position_offset,
        vocab_size=spec.vocabulary.size,
        draft_vocab_size=spec.vocabulary.draft_size,
        offsets=None if ids is None else ids - range(len(ids)),
        states_width=len(spec.layer_ids) * spec.backbone.target_hidden_size,
        width=spec.backbone.hidden_size,
        own_embedding=spec.own_embedding and not spec.frozen_copies,
        own_lm_head=spec.own_lm_head and not spec.frozen_copies,
        frozen_copies=spec.frozen_copies,
        layer_count=spec.num_target_layers,
    )


def _readable(package: Package, model: ov.Model) -> Package:
    """The package with placeholders where metadata is missing, so that the rest can be read.

    A ``d2t`` output goes too: it has a check of its own that takes nothing for granted.
    """
    missing = _missing(model)
    mapping = drafts.find_result(model, Port.D2T)
    if not missing and mapping is None:
        return package
    copy = model.clone()
    for key in missing:
        ir.set_text(copy, key, "0")
    if mapping is not None:
        if model_kind(model) == "eagle3 draft":
            ir.set_text(copy, Key.EAGLE3_MODE, "True")  # without d2t, nothing else would tell
        copy.remove_result(drafts.find_result(copy, Port.D2T))
    readable = Package(package.path)
    readable.add(readable.main_name, copy)
    return readable


def _missing(model: ov.Model) -> list[RtPath]:
    """What a DFlash draft must say and does not."""
    if model_kind(model) != "dflash draft":
        return []
    return [key for key in (Key.MASK_TOKEN_ID, Key.TARGET_LAYER_IDS) if ir.get_text(model, key) is None]


def _of_ir(package: Package, model: ov.Model, exported: drafts.DraftIr) -> DraftFacts:
    graph = ir.Graph(model)
    missing = _missing(model)
    parameter = drafts.find_input(model, Port.HIDDEN_STATES)
    assert parameter is not None  # read_draft refuses a draft without it
    moved = exported.moved_fc is not None
    fc, fc_reasons = (None, ()) if moved else drafts.find_fc(graph, graph.index(parameter))
    record = exported.moved_fc
    states_width = exported.hidden_width if record is None else record.get("in_width")
    hidden = drafts.find_result(model, Port.LAST_HIDDEN_STATE)
    rows = drafts.find_input(model, Port.INPUTS_EMBEDS)
    embedding = _own_embedding(model, graph)
    widths = (
        None if rows is None else static_last(rows.output(0)),
        None if embedding is None else embedding.width,
        None if fc is None else fc.out_width,
        None if hidden is None else static_last(hidden.output(0)),
    )
    count = _config(package, "num_target_layers")
    return DraftFacts(
        package,
        family=draft_family(exported),
        exported=exported,
        graph=graph,
        fc=fc,
        fc_reasons=fc_reasons,
        layer_ids=None if Key.TARGET_LAYER_IDS in missing else exported.target_layer_ids,
        mask_token_id=None if Key.MASK_TOKEN_ID in missing else exported.mask_token_id,
        block_size=exported.block_size,
        offset=_offset(model),
        vocab_size=exported.vocab_size,
        draft_vocab_size=exported.draft_vocab_size,
        offsets=_mapping(model),
        states_width=states_width,
        width=next((width for width in widths if width is not None), None),
        own_embedding=rows is None,
        own_lm_head=any(drafts.find_result(model, port) is not None for port in (Port.LOGITS, Port.DRAFT_TOKEN_IDS)),
        layer_count=count if isinstance(count, int) and not isinstance(count, bool) else None,
    )


def _offset(model: ov.Model) -> int:
    text = ir.get_text(model, Key.CANDIDATE_POSITION_OFFSET)
    return 0 if text == "0" else 1  # malformed ones have a check of their own


def is_attached(draft: DraftFacts, table: str) -> bool:
    """Whether a table in a draft IR (``embedding``, ``lm_head``) is the target's, put there by a graft."""
    return draft.exported is not None and table in (draft.exported.applied or {})


def _own_embedding(model: ov.Model, graph: ir.Graph) -> decoder.Embedding | None:
    if drafts.find_input(model, Port.INPUT_IDS) is None:
        return None
    try:
        return decoder.read_embedding(model, graph)
    except StructureError:
        return None


def own_embedding(facts: DraftFacts) -> decoder.Embedding | None:
    """The token embedding inside a draft IR."""
    return None if facts.exported is None or facts.graph is None else _own_embedding(facts.exported.model, facts.graph)


def _mapping(model: ov.Model) -> NDArray[np.int64] | None:
    """The values of a ``d2t`` output that is a table; whether they make sense is asked later."""
    import numpy as np

    result = drafts.find_result(model, Port.D2T)
    constant = None if result is None else result.input_value(0).get_node()
    if constant is None or constant.get_type_name() != "Constant":
        return None
    values: NDArray[np.int64] = constant.data.astype(np.int64)
    return values


def _config(package: Package, name: str) -> Any:
    """A value of config.json, at the top or in ``dflash_config``."""
    nested = package.config.get("dflash_config")
    inner = nested.get(name) if isinstance(nested, Mapping) else None
    return package.config.get(name) if inner is None else inner


def short_name(path: Path) -> str:
    """Folder or file name of a package, without where it lies."""
    return path.resolve().name
