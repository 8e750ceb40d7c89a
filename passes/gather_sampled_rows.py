"""``gather-sampled-rows``: a paged model computes logits for the rows that are asked for only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ovgraft import decoder, drafts, ir
from ovgraft.drafts.contract import Port
from ovgraft.errors import PostconditionError, PreconditionError
from ovgraft.passbase import Context, Pass, option

if TYPE_CHECKING:
    from ovgraft.graft import Graft


@dataclass(frozen=True, kw_only=True)
class GatherSampledRows(Pass):
    """Add the input sampled_tokens_indices in front of the output layer, as runtimes do at load.

    A prefill of many rows then pays for the output layer once per sampled token instead of once per row. The rows are
    the first axis, so the model must be in PagedAttention form.
    """

    name: ClassVar[str] = "gather-sampled-rows"

    model: Literal["target", "draft"] = option("target", "which model of the graft to edit")

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Gather the rows that enter the output layer."""
        model = graft.package(self.model).model
        if drafts.find_input(model, Port.SAMPLED_TOKENS_INDICES) is not None:
            ctx.remark(f"unchanged: the {self.model} has the input {Port.SAMPLED_TOKENS_INDICES}")
            return
        if not any(node.get_type_name() in decoder.PAGED_TYPES for node in model.get_ops()):
            raise PreconditionError(
                f"the {self.model} is not in PagedAttention form, its rows are not the first axis",
                hint="run paged-attention first",
            )
        head = decoder.read_lm_head(model)
        entering = head.matmul.input_value(0)
        indices = ir.make_parameter(Port.SAMPLED_TOKENS_INDICES, "i64", [-1])
        axis = ir.opset.constant(0, dtype="int64")
        rows = ir.opset.gather(entering, indices, axis)
        names = drafts.NameSpace(model, "sampled")
        names.give(axis, "sampled_rows/axis")
        names.give(rows, "sampled_rows")
        head.matmul.input(0).replace_source_output(rows.output(0))
        model.add_parameters([indices])
        model.validate_nodes_and_infer_types()
        text = f"input {Port.SAMPLED_TOKENS_INDICES} selects the rows that enter the output layer"
        ctx.note("add", self.model, text, ir.node_ref(head.matmul))

    def ensures(self, graft: Graft) -> None:
        """The input is there and leads to the output layer.

        Raises:
            PostconditionError: It is not.
        """
        model = graft.package(self.model).model
        gather = decoder.read_lm_head(model).matmul.input_value(0).get_node()
        indices = gather.input_value(1) if gather.get_type_name() == "Gather" else None
        if indices is None or Port.SAMPLED_TOKENS_INDICES not in indices.get_names():
            raise PostconditionError(f"{Port.SAMPLED_TOKENS_INDICES} does not reach the output layer")
