"""drop-dead-inputs: model inputs nobody reads go away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ovgraft import ir
from ovgraft.errors import PostconditionError
from ovgraft.passbase import Context, Pass, option
from ovgraft.passes._selection import FILE_HELP, MODEL_HELP, select

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.graft import Graft


@dataclass(frozen=True, kw_only=True)
class DropDeadInputs(Pass):
    """Remove inputs that reach no output and no state.

    A runtime that feeds an input by name fails when the input is gone; ``keep`` holds back those it always feeds.
    """

    name: ClassVar[str] = "drop-dead-inputs"

    model: Literal["target", "draft", "both"] = option("both", MODEL_HELP)
    file: str | None = option(None, FILE_HELP)
    keep: tuple[str, ...] = option((), "tensor names of inputs to keep although nothing reads them", example="beam_idx")

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Remove them."""
        for role, model in select(graft, self.model, self.file):
            for parameter in self._dead(model):
                node, names = ir.node_ref(parameter, model), sorted(parameter.output(0).get_names())
                model.remove_parameter(parameter)
                ctx.note("remove", role, f"input {', '.join(names) or node.name} removed: nothing reads it", node)
        if not ctx.edits:
            ctx.remark("unchanged: every input is read or kept")
        models = [model for _, model in select(graft, self.model, self.file)]
        there = {name for model in models for parameter in model.get_parameters() for name in parameter.output(0).names}
        if gone := [name for name in self.keep if name not in there]:
            ctx.remark(f"not there to be kept: {', '.join(gone)}")

    def ensures(self, graft: Graft) -> None:
        """No such input is left."""
        for role, model in select(graft, self.model, self.file):
            for parameter in self._dead(model):
                raise PostconditionError(f"a dead input is left in the {role}", node=ir.node_ref(parameter, model))

    def _dead(self, model: ov.Model) -> list[ov.op.Parameter]:
        # every op but Parameters is in this list because a Result or an Assign needs it; a consumer that is not in it
        # is a leftover that nothing reads
        needed = model.get_ordered_ops()
        alive = {id(node) for node in needed}
        return [
            parameter
            for parameter in model.get_parameters()
            if not any(id(target.get_node()) in alive for target in parameter.output(0).get_target_inputs())
            and not parameter.output(0).get_names().intersection(self.keep)
        ]
