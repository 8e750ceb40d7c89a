"""``fuse-attention``: written-out attention becomes ScaledDotProductAttention again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ovgraft import decoder, ir
from ovgraft.errors import PostconditionError, StructureError
from ovgraft.passbase import Context, Pass, option

if TYPE_CHECKING:
    from ovgraft.graft import Graft


@dataclass(frozen=True, kw_only=True)
class FuseAttention(Pass):
    """Fuse MatMul, scale, mask, Softmax, MatMul back into ScaledDotProductAttention.

    Exports sometimes come out with attention written out, and PagedAttention is then impossible. What the op cannot
    express (soft capping or sinks inside the scores, scores used elsewhere) is refused; a router's Softmax is
    left alone.
    """

    name: ClassVar[str] = "fuse-attention"

    model: Literal["target", "draft"] = option("target", "which model of the graft to fuse in")

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Fuse all or nothing: a model half fused pages no better than before."""
        model = graft.package(self.model).model
        graph = ir.Graph(model)
        found, refused = decoder.find_decomposed(graph)
        if refused:
            raise StructureError("attention that ScaledDotProductAttention cannot express", reasons=tuple(refused))
        if not found:
            ctx.remark("unchanged: no written-out attention")
            return
        for match in found:
            node = decoder.fuse(match)
            ctx.note("replace", self.model, f"{graph.ref(match.softmax)} fused", ir.node_ref(node))
        ir.name_by_place(model, "fused/", before=graph)
        model.validate_nodes_and_infer_types()

    def ensures(self, graft: Graft) -> None:
        """No attention is written out."""
        graph = ir.Graph(graft.package(self.model).model)
        left, refused = decoder.find_decomposed(graph)
        if left or refused:
            raise PostconditionError(f"{len(left) + len(refused)} attention blocks are still written out")
