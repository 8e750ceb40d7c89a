"""``per-row-draft``: an exported DFlash draft takes context and block rows on one axis, so that it can be paged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ovgraft import decoder, drafts, ir
from ovgraft.drafts.contract import Key, Port
from ovgraft.errors import PostconditionError, PreconditionError, Reason, StructureError
from ovgraft.passbase import Context, Pass

if TYPE_CHECKING:
    from ovgraft.graft import Graft

LAYOUT = "per_row"


@dataclass(frozen=True, kw_only=True)
class PerRowDraft(Pass):
    """Rewrite the exported SDPA draft row by row, told apart by token_type_ids; paged-attention then converts it.

    Windows and the causality of each layer stay as the IR has them. Every row comes out, the anchor's included.
    """

    name: ClassVar[str] = "per-row-draft"
    needs_draft: ClassVar[bool] = True

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Rewrite the draft's backbone.

        Raises:
            PreconditionError: It is no DFlash draft.
            StructureError: It is not laid out as exported, or a window is narrower than the block.
        """
        model = graft.package("draft").model
        layout = ir.get_text(model, Key.INPUT_LAYOUT)
        if layout == LAYOUT:
            ctx.remark("unchanged: the draft is in the per-row form already")
            return
        facts = drafts.read_draft(graft.package("draft"))
        if facts.family != "dflash":
            raise PreconditionError("only DFlash drafts have a per-row form", expected="dflash", found=facts.family)
        graph = ir.Graph(model)
        exported = drafts.read_exported(graph)
        _refuse_narrow_windows(graph, exported, facts.block_size)
        types = drafts.rewrite(graph, exported)
        ir.name_by_place(model, "per_row/", before=graph)
        ctx.note("add", "draft", "input token_type_ids added: 0 context row, 1 block row", ir.node_ref(types))
        for entry in exported.attention:
            inside = "both directions" if entry.sees.bidirectional else "causal"
            window = f", window {entry.sees.window}" if entry.sees.window else ""
            text = f"attention sees its block in {inside}{window}"
            ctx.note("replace", "draft", text, graph.ref(entry.node))
        if exported.cuts:
            ctx.note("remove", "draft", "the anchor row comes out too", graph.ref(exported.cuts[0]))
        ir.set_text(model, Key.INPUT_LAYOUT, LAYOUT)
        ctx.note("metadata", "draft", f"{'/'.join(Key.INPUT_LAYOUT)} = {LAYOUT}")
        if exported.cuts and ir.get_text(model, Key.CANDIDATE_POSITION_OFFSET) is None:
            ir.set_text(model, Key.CANDIDATE_POSITION_OFFSET, "1")
            ctx.note("metadata", "draft", f"{'/'.join(Key.CANDIDATE_POSITION_OFFSET)} = 1")

    def ensures(self, graft: Graft) -> None:
        """The draft has its row kinds, and no row is split off or dropped."""
        model = graft.package("draft").model
        if not any(Port.TOKEN_TYPE_IDS in port.get_names() for port in model.inputs):
            raise PostconditionError("the draft has no input token_type_ids")
        graph = ir.Graph(model)
        left = [reason for reason in decoder.readiness(graph) if reason.code == "unmatched-state"]
        if left:
            raise PostconditionError("context and block rows are still apart", reasons=tuple(left))


def _refuse_narrow_windows(graph: ir.Graph, exported: drafts.ExportedDraft, block_size: int | None) -> None:
    """One row axis lets a row see its whole block, whatever the window, as PagedAttention does."""
    reasons = tuple(
        Reason("window-in-block", f"its window of {entry.sees.window} is narrower", (graph.ref(entry.node),))
        for entry in exported.attention
        if entry.sees.bidirectional and 0 < entry.sees.window < (block_size or 0)
    )
    if reasons:
        message = f"a row would see more of its block of {block_size} rows than the exported draft lets it"
        raise StructureError(message, reasons=reasons)
