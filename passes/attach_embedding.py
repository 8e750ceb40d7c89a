"""attach-embedding: the draft reads tokens through the target's embedding table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from blake3 import blake3

from ovgraft import decoder, drafts, ir
from ovgraft.drafts.contract import WEIGHT_DIGEST_KEY, FileName, Key, Port
from ovgraft.errors import PostconditionError, PreconditionError
from ovgraft.passbase import Context, Pass

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov
    from numpy.typing import NDArray

    from ovgraft.graft import Graft, Package

RECORD = "embedding"
"""Name of this pass's part of the record ``ovgraft/applied``."""


@dataclass(frozen=True, kw_only=True)
class AttachEmbedding(Pass):
    """Give the draft the target's token embedding: inputs_embeds becomes input_ids.

    The table moves as it is stored; in a vision-language package it comes from ``openvino_text_embeddings_model.xml``.
    Rows are multiplied by the draft's ``dflash/input_embedding_scale`` only: what the target multiplies its own rows by
    (Gemma) is not inherited. Metadata and config.json then say 1 and ``ovgraft/applied`` keeps the factor, so that no
    host applies it twice. A ``mask_embedding.safetensors`` beside the draft takes the place of the mask token's row.

    A draft with a table of its own keeps it. Only that of an Eagle-3 draft is replaced, as GenAI does: exporters leave
    it random when the checkpoint has none.
    """

    name: ClassVar[str] = "attach-embedding"
    needs_draft: ClassVar[bool] = True

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Attach it.

        Raises:
            PreconditionError: Widths or vocabularies do not fit, or another table is attached.
            StructureError: An embedding cannot be told.
        """
        draft = drafts.read_draft(graft.package("draft"))
        if _keeps_own(draft):
            ctx.remark("unchanged: the draft has its own embedding")
            return
        source = target_embedding(graft.target)
        applied = dict(draft.applied or {})
        mask_embedding = drafts.read_mask_embedding(graft.package("draft").folder, source.width)
        if RECORD in applied:
            drafts.check_attached(applied[RECORD], source.table, "embedding", draft.file)
            _check_mask_embedding(applied[RECORD], mask_embedding, draft)
            self._correct_config(graft, ctx, applied)
            ctx.remark(f"{'' if ctx.edits else 'unchanged: '}this embedding is attached already")
            return
        replaced, ids = _replaced(draft)
        drafts.check_width(replaced, "embedding", source.width, source.gather, draft.file)
        drafts.check_vocabulary(draft, graft.target)
        if draft.mask_token_id is not None and draft.mask_token_id >= source.vocab_size:
            raise PreconditionError(
                "the draft's mask token has no row in the target's embedding",
                file=draft.file,
                expected=f"an id below {source.vocab_size}",
                found=draft.mask_token_id,
            )
        if source.scale is not None:
            ctx.remark(
                f"the target multiplies its embedding rows by {source.scale:g}; the draft takes bare rows times "
                f"input_embedding_scale {draft.input_embedding_scale:g}"
            )
        if mask_embedding is None and draft.mask_token_id is not None:
            warning = drafts.mask_row_warning(source.table, draft.mask_token_id)
            if warning is not None:
                ctx.remark(str(warning))

        model = draft.model
        graph = ir.Graph(model)
        names = drafts.NameSpace(model, "target")
        table, digest = drafts.transplant(source.table, names)
        if ids is None:
            parameter = ir.make_parameter(Port.INPUT_IDS, "i64", replaced.get_partial_shape()[:-1])
            model.add_parameters([parameter])
            ids = parameter.output(0)
        axis = names.constant(0, ids.get_element_type(), "input_embedding/axis")
        rows = names.give(ir.opset.gather(table, ids, axis), "input_embedding")
        gather = rows.get_node()
        if rows.get_element_type() != replaced.get_element_type():
            rows = names.give(ir.opset.convert(rows, replaced.get_element_type()), "input_embedding/convert")
        if mask_embedding is not None:
            rows = _with_mask_embedding(rows, ids, draft, mask_embedding, names)
        if draft.input_embedding_scale != 1:
            scale = names.constant(draft.input_embedding_scale, rows.get_element_type(), "input_embedding/scale")
            rows = names.give(ir.opset.multiply(rows, scale), "input_embedding/scaled")
        drafts.redirect(graph, replaced, rows)
        if replaced.get_node().get_type_name() == "Parameter":
            model.remove_parameter(replaced.get_node())
        applied[RECORD] = {"digest": digest, "input_embedding_scale": draft.input_embedding_scale}
        if mask_embedding is not None:
            applied[RECORD]["mask_embedding"] = _vector_digest(mask_embedding)
        drafts.write_record(model, Key.APPLIED, applied)
        ir.set_text(model, Key.INPUT_EMBEDDING_SCALE, "1")
        model.validate_nodes_and_infer_types()
        text = f"embedding {source.vocab_size} x {source.width} of the target reads input_ids"
        ctx.note("add", "draft", text, ir.node_ref(gather, model))
        if mask_embedding is not None:
            ctx.note("add", "draft", f"the draft's own mask embedding stands for token {draft.mask_token_id}")
        ctx.note("metadata", "draft", f"input_embedding_scale {draft.input_embedding_scale:g} is in the graph now")
        self._correct_config(graft, ctx, applied)

    def _correct_config(self, graft: Graft, ctx: Context, applied: Mapping[str, Any]) -> None:
        facts = {**drafts.EMBEDDING_IN_GRAPH, **drafts.tied_tables(applied)}
        if text := drafts.correct_config(graft.package("draft"), facts):
            ctx.note("metadata", "draft", text)

    def ensures(self, graft: Graft) -> None:
        """The draft reads ``input_ids`` through the very table on record.

        Raises:
            PostconditionError: It does not.
        """
        draft = drafts.read_draft(graft.package("draft"))
        if _keeps_own(draft):
            return
        model, record = draft.model, (draft.applied or {}).get(RECORD)
        if record is None or drafts.find_input(model, Port.INPUT_IDS) is None:
            raise PostconditionError("no embedding is attached")
        if drafts.find_input(model, Port.INPUTS_EMBEDS) is not None:
            raise PostconditionError("the draft still has inputs_embeds")
        drafts.ensure_weight(decoder.read_embedding(model).table, record["digest"])


def target_embedding(target: Package) -> decoder.Embedding:
    """The token embedding of a package, wherever it lies.

    Raises:
        PreconditionError: The language model takes embeddings and the package has no IR that makes them.
    """
    if drafts.find_input(target.model, Port.INPUTS_EMBEDS) is None:
        return decoder.read_embedding(target.model)
    model = target.get(FileName.TEXT_EMBEDDINGS)
    if model is None:
        raise PreconditionError(
            "the target has no token embedding",
            file=target.path,
            expected=f"an input input_ids, or {FileName.TEXT_EMBEDDINGS}.xml beside it",
        )
    return decoder.read_embedding(model)


def _keeps_own(draft: drafts.DraftIr) -> bool:
    """Whether the draft came with a table that is trained for it."""
    attached = RECORD in (draft.applied or {})
    return draft.family != "eagle3" and not attached and drafts.find_input(draft.model, Port.INPUTS_EMBEDS) is None


def _vector_digest(vector: NDArray[np.float32]) -> str:
    return blake3(vector.tobytes()).hexdigest()


def _check_mask_embedding(record: Mapping[str, Any], vector: NDArray[np.float32] | None, draft: drafts.DraftIr) -> None:
    """A side file that came or changed since the embedding was attached is not in the graph."""
    if vector is None:
        return
    wanted, found = _vector_digest(vector), record.get("mask_embedding")
    if wanted != found:
        raise PreconditionError(
            "the embedding was attached without this mask embedding",
            file=draft.file,
            expected=f"digest {wanted[:12]}",
            found="none" if found is None else f"digest {found[:12]}",
            hint="start from the draft as exported",
        )


def _with_mask_embedding(
    rows: ov.Output, ids: ov.Output, draft: drafts.DraftIr, vector: NDArray[np.float32], names: drafts.NameSpace
) -> ov.Output:
    """Rows with the draft's own vector for its mask token."""
    assert draft.mask_token_id is not None  # only DFlash drafts have such a side file
    opset, name = ir.opset, "input_embedding/mask"
    mask = names.constant(draft.mask_token_id, ids.get_element_type(), f"{name}/token")
    axis = names.constant(-1, ids.get_element_type(), f"{name}/axis")
    is_mask = names.give(opset.equal(ids, mask), f"{name}/equal")
    is_mask = names.give(opset.unsqueeze(is_mask, axis), f"{name}/is_mask")
    stored = names.give(opset.constant(vector.astype(rows.get_element_type().to_dtype())), f"{name}/embedding")
    ir.set_user_data(stored.get_node(), WEIGHT_DIGEST_KEY, ir.weights_digest(stored))
    return names.give(opset.select(is_mask, stored, rows), name)


def _replaced(draft: drafts.DraftIr) -> tuple[ov.Output, ov.Output | None]:
    """The embedding rows the draft computes with now, and the ids they are made from (None: they are an input)."""
    parameter = drafts.find_input(draft.model, Port.INPUTS_EMBEDS)
    if parameter is not None:
        return parameter.output(0), None
    own = decoder.read_embedding(draft.model)
    return own.output, own.ids
