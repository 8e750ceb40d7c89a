"""expose-draft-hidden: an Eagle-3 draft gives out what its next step reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ovgraft import decoder, drafts, ir
from ovgraft.drafts.contract import Port
from ovgraft.errors import PostconditionError, PreconditionError
from ovgraft.passbase import Context, Pass

if TYPE_CHECKING:
    from ovgraft.graft import Graft


@dataclass(frozen=True, kw_only=True)
class ExposeDraftHidden(Pass):
    """Add the pre-norm residual of an Eagle-3 draft as its output last_hidden_state.

    An exported draft gives ``logits`` and ``d2t`` only. Its next drafted token needs the residual stream behind its one
    layer, before the final norm, f32 ``[B, S, H]``, as ``hidden_states``. Found as the last residual Add above
    ``lm_head``; GenAI finds the same op by the name ``midlayer``.
    """

    name: ClassVar[str] = "expose-draft-hidden"
    needs_draft: ClassVar[bool] = True

    def requires(self, graft: Graft) -> None:
        """It must be an Eagle-3 draft.

        Raises:
            PreconditionError: It is another one; a DFlash draft gives its hidden states as exported.
        """
        draft = drafts.read_draft(graft.package("draft"))
        if draft.family != "eagle3":
            raise PreconditionError("only an Eagle-3 draft reads its own state", file=draft.file, found=draft.family)

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Add the output.

        Raises:
            PreconditionError: An output of that name gives something else.
            StructureError: The residual cannot be told.
        """
        package = graft.package("draft")
        model = package.model
        graph = ir.Graph(model)
        residual = drafts.last_residual(graph, decoder.read_lm_head(model).hidden)
        there = drafts.find_result(model, Port.LAST_HIDDEN_STATE)
        if there is not None:
            source = there.input_value(0).get_node()
            if source is not residual:
                raise PreconditionError(
                    "the draft has an output last_hidden_state of something else",
                    file=package.path,
                    expected=ir.node_ref(residual, model),
                    found=ir.node_ref(source, model),
                )
            ctx.remark("unchanged: the residual is exposed already")
            return
        drafts.add_output(model, residual.output(0), Port.LAST_HIDDEN_STATE)
        model.validate_nodes_and_infer_types()
        text = "output last_hidden_state: the residual before the final norm"
        ctx.note("add", "draft", text, ir.node_ref(residual, model))

    def ensures(self, graft: Graft) -> None:
        """All three outputs are there.

        Raises:
            PostconditionError: One is not.
        """
        model = graft.package("draft").model
        for name in (Port.LOGITS, Port.LAST_HIDDEN_STATE):
            if drafts.find_result(model, name) is None:
                raise PostconditionError(f"the draft has no output {name}")
