"""``paged-attention``: a stateful decoder becomes the form that continuous batching runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ovgraft import decoder, ir
from ovgraft.errors import PostconditionError, Reason, StructureError
from ovgraft.passbase import Context, Pass, option

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.decoder.to_paged import AttentionFacts, Converted
    from ovgraft.graft import Graft

_MARKS = {
    "score_outputs": "scores.0",
    "score_aggregation": "score_aggregation_window",
    "cache_rotation": "model_rotation_trig_lut",
    "xattention": "xattention_block_size",
    "adaptive_rkv": "adaptive_rkv_start_size",
    "qq_bias": "qq_bias",
    "per_layer_block_indices": "block_indices.0",
}
"""A port that a paged model has exactly when an option was on."""


@dataclass(frozen=True, kw_only=True)
class PagedAttention(Pass):
    """Turn the stateful model into its PagedAttention form, checked attention by attention.

    OpenVINO's own transformation does the matching, on a clone. What it drops without a word is found by comparing each
    paged op with the attention it came from: a sliding window and ALiBi slopes are put back, ``token_type_ids`` is
    connected, anything else is refused.
    """

    name: ClassVar[str] = "paged-attention"

    model: Literal["target", "draft"] = option("target", "which model of the graft to convert")
    score_outputs: bool = option(False, "add attention scores as outputs scores.N")
    score_aggregation: bool = option(True, "add input score_aggregation_window, as OpenVINO GenAI does")
    cache_rotation: bool = option(False, "add the cache rotation inputs")
    xattention: bool = option(False, "add the XAttention inputs")
    adaptive_rkv: bool = option(False, "add the adaptive R-KV inputs and outputs")
    qq_bias: bool = option(False, "add the query-query bias inputs")
    per_layer_block_indices: bool = option(False, "give each layer its own block_indices.N")

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Convert a clone, check it, swap it in."""
        package = graft.package(self.model)
        reasons = decoder.readiness(ir.Graph(package.model))
        if [reason.code for reason in reasons] == ["already-paged"]:
            self._check_present(package.model)
            ctx.remark(f"unchanged: {reasons[0].message}")
            return
        converted = self.convert(package.model, ctx)
        package.model = converted.model
        counts = ", ".join(f"{count} {kind}" for kind, count in converted.counts.items())
        ctx.note("replace", self.model, f"converted to PagedAttention: {counts}")

    def convert(self, source: ov.Model, ctx: Context) -> Converted:
        """The paged form of a model, checked; the model itself is left as it is.

        Raises:
            StructureError: It cannot be paged, or would compute something else.
        """
        graph = ir.Graph(source)
        reasons = decoder.readiness(graph)
        if reasons:
            raise StructureError(f"the {self.model} cannot be paged", reasons=tuple(reasons))
        facts = decoder.attention_facts(graph)
        clone = source.clone()
        for name in decoder.match_port_names(clone):
            ctx.remark(f"input node renamed to its tensor name {name}")
        converted = decoder.convert_to_paged(clone, self._native_options())
        reasons = self._repair(converted, facts, ctx)
        reasons += decoder.position_problems(converted.model)
        reasons += decoder.output_problems(source, converted.model)
        if reasons:
            raise StructureError(f"the paged {self.model} would compute something else", reasons=tuple(reasons))
        ir.keep_head_sizes(converted.attention)
        decoder.name_new_nodes(converted.model, graph)
        return converted

    def ensures(self, graft: Graft) -> None:
        """The model is paged and no cache variable is left."""
        graph = ir.Graph(graft.package(self.model).model)
        left = graph.find("ReadValue") + graph.find(decoder.ATTENTION)
        if left:
            raise PostconditionError("a cache variable or unpaged attention is left", node=graph.ref(left[0]))
        if not any(kind in decoder.PAGED_TYPES for kind in graph.types):
            raise PostconditionError("the model has no paged op")
        for i in graph.find(ir.PAGED_ATTENTION):
            if any(ir.get_user_data(graph.nodes[i], key) is None for key in ir.HEAD_SIZES):
                raise PostconditionError("head sizes are not recorded", node=graph.ref(i))

    def _check_present(self, model: ov.Model) -> None:
        """Refuse a paged model that is not as the options ask for: it is not converted a second time."""
        names = {name for port in (*model.inputs, *model.outputs) for name in port.get_names()}
        reasons = []
        for option_name, mark in _MARKS.items():
            if getattr(self, option_name) != (mark in names):
                has = "no" if getattr(self, option_name) else "a"
                text = f"it has {has} port {mark}, {option_name.replace('_', '-')} says otherwise"
                reasons.append(Reason(option_name.replace("_", "-"), text))
        if reasons:
            raise StructureError(
                f"the {self.model} is in PagedAttention form already, with other options",
                hint="start from the stateful model",
                reasons=tuple(reasons),
            )

    def _native_options(self) -> dict[str, Any]:
        return {
            "use_block_indices_inputs": self.per_layer_block_indices,
            "use_score_outputs": self.score_outputs,
            "allow_score_aggregation": self.score_aggregation,
            "allow_cache_rotation": self.cache_rotation,
            "allow_xattention": self.xattention,
            "allow_adaptive_rkv": self.adaptive_rkv,
            "allow_qq_bias": self.qq_bias,
        }

    def _repair(self, converted: Converted, facts: list[AttentionFacts], ctx: Context) -> list[Reason]:
        """Put back what the conversion dropped; the differences that remain are the reasons to refuse."""
        pairs = list(zip(converted.attention, facts, strict=True))
        unconnected = [n for n, f in pairs if f.mask.token_types and not decoder.read_paged(n).token_types]
        if unconnected:
            decoder.connect_token_types(converted.model, unconnected)
            ctx.remark(f"token_type_ids connected to {len(unconnected)} attention ops")
        done = [f"{what} in {fact.name}" for node, fact in pairs for what in decoder.repair(node, fact)]
        for text in done:
            ctx.remark(text)
        converted.model.validate_nodes_and_infer_types()
        return [
            Reason("other-attention", f"{fact.name}: {text}", (ir.node_ref(node),))
            for node, fact in pairs
            for text in decoder.differences(fact, node)
        ]
