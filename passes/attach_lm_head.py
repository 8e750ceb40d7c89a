"""attach-lm-head: the target's output layer turns the draft's hidden states into logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ovgraft import decoder, drafts, ir
from ovgraft.drafts import markov
from ovgraft.drafts.contract import Key, Port
from ovgraft.errors import PostconditionError, PreconditionError
from ovgraft.passbase import Context, Pass, option

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.graft import Graft

RECORD = "lm_head"
"""Name of this pass's part of the record ``ovgraft/applied``."""

_LAYOUT = frozenset({"Convert", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Gather", "Slice"})


@dataclass(frozen=True, kw_only=True)
class AttachLmHead(Pass):
    """Give the draft the target's output layer: last_hidden_state becomes logits.

    Weights move as they are stored, with transpose flag and bias. The draft's own metadata is applied behind them,
    first ``dflash/output_multiplier``, then ``dflash/final_logit_softcapping`` as ``cap * tanh(logits / cap)``; the
    metadata then says 1 and 0 and ``ovgraft/applied`` keeps the values. In config.json the factors go too, and the
    vocabulary is that of the logits. What the target does to its own logits is not inherited. A draft with an output
    layer of its own keeps that.
    """

    name: ClassVar[str] = "attach-lm-head"
    needs_draft: ClassVar[bool] = True

    keep_hidden: bool | None = option(
        None, "keep last_hidden_state beside logits; by default when the draft's Markov head reads it"
    )

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Attach it.

        Raises:
            PreconditionError: Widths or vocabularies do not fit, or another output layer is attached.
            StructureError: The target's output layer cannot be told.
        """
        draft = drafts.read_draft(graft.package("draft"))
        if _has_own(draft):
            mapped = "" if draft.d2t is None else ", mapped to the target's by d2t"
            text = f"the draft has its own output layer of {draft.draft_vocab_size} tokens{mapped}"
            self._settle_hidden(draft, text, needed=bool(self.keep_hidden), ctx=ctx)
            return
        source = decoder.read_lm_head(graft.target.model)
        model = draft.model
        applied = dict(draft.applied or {})
        hidden_result = drafts.find_result(model, Port.LAST_HIDDEN_STATE)
        keep_hidden = self._keeps_hidden(model)
        if RECORD in applied:
            drafts.check_attached(applied[RECORD], source.weight, "output layer", draft.file)
            text = "this output layer is attached already"
            _correct_config(graft, ctx, applied, source.vocab_size)
            self._settle_hidden(draft, text, needed=keep_hidden, ctx=ctx)
            return
        if hidden_result is None:
            raise PreconditionError("the draft has no output last_hidden_state", file=draft.file)
        hidden = hidden_result.input_value(0)
        drafts.check_width(hidden, "output layer", source.width, source.matmul, draft.file)
        drafts.check_vocabulary(draft, graft.target)
        _remark_on_target(graft, source, draft, ctx)

        names = drafts.NameSpace(model, "target")
        logits, record = _output_layer(source, hidden, names)
        product = logits.get_node()
        logits = _scaled(logits, draft, names)
        drafts.add_output(model, logits, Port.LOGITS)
        if not keep_hidden:
            _drop_hidden(model, hidden_result)
        record["output_multiplier"] = draft.output_multiplier
        record["final_logit_softcapping"] = draft.final_logit_softcapping
        applied[RECORD] = record
        drafts.write_record(model, Key.APPLIED, applied)
        ir.set_text(model, Key.OUTPUT_MULTIPLIER, "1")
        ir.set_text(model, Key.FINAL_LOGIT_SOFTCAPPING, "0")
        model.validate_nodes_and_infer_types()
        text = f"output layer {source.vocab_size} x {source.width} of the target gives logits"
        ctx.note("add", "draft", text, ir.node_ref(product, model))
        if not keep_hidden:
            ctx.note("remove", "draft", "output last_hidden_state")
        factors = f"output_multiplier {draft.output_multiplier:g}, soft cap {draft.final_logit_softcapping:g}"
        ctx.note("metadata", "draft", f"{factors} are in the graph now")
        _correct_config(graft, ctx, applied, source.vocab_size)

    def ensures(self, graft: Graft) -> None:
        """The draft's logits come out of the very weights on record.

        Raises:
            PostconditionError: They do not.
        """
        draft = drafts.read_draft(graft.package("draft"))
        if self.keep_hidden is False and drafts.find_result(draft.model, Port.LAST_HIDDEN_STATE) is not None:
            raise PostconditionError("last_hidden_state is still there")
        if _has_own(draft):
            return
        model, record = draft.model, (draft.applied or {}).get(RECORD)
        if record is None or drafts.find_result(model, Port.LOGITS) is None:
            raise PostconditionError("no output layer is attached")
        if self._keeps_hidden(model) and drafts.find_result(model, Port.LAST_HIDDEN_STATE) is None:
            raise PostconditionError("last_hidden_state is gone")
        head = decoder.read_lm_head(model)
        drafts.ensure_weight(head.weight, record["digest"])
        if "bias_digest" in record:
            if head.bias is None:
                raise PostconditionError("the bias of the output layer is gone")
            drafts.ensure_weight(head.bias, record["bias_digest"])

    def _keeps_hidden(self, draft: ov.Model) -> bool:
        if self.keep_hidden is not None:
            return self.keep_hidden
        return markov.read_advertised(draft)[0].reads_hidden

    def _settle_hidden(self, draft: drafts.DraftIr, there: str, *, needed: bool, ctx: Context) -> None:
        """A draft with logits: last_hidden_state goes when it is told to, and cannot come back.

        Args:
            draft: The draft.
            there: What is as it should be.
            needed: Whether last_hidden_state must be there.
            ctx: Told of it.
        """
        result = drafts.find_result(draft.model, Port.LAST_HIDDEN_STATE)
        if needed and result is None:
            attached = RECORD in (draft.applied or {})
            gone = "the output layer was attached without keep-hidden" if attached else "the draft has none to keep"
            raise PreconditionError(
                gone, file=draft.file, expected="an output last_hidden_state", hint="start from the draft as exported"
            )
        if self.keep_hidden is not False or result is None:
            ctx.remark(f"{'' if ctx.edits else 'unchanged: '}{there}")
            return
        if draft.family == "eagle3":
            raise PreconditionError("an Eagle-3 draft reads its own last_hidden_state", file=draft.file)
        ctx.remark(there)
        _drop_hidden(draft.model, result)
        draft.model.validate_nodes_and_infer_types()
        ctx.note("remove", "draft", "output last_hidden_state")


def _correct_config(graft: Graft, ctx: Context, applied: Mapping[str, Any], vocab_size: int) -> None:
    facts = {**drafts.LOGITS_IN_GRAPH, **drafts.tied_tables(applied), "vocab_size": vocab_size}
    if text := drafts.correct_config(graft.package("draft"), facts | {"draft_vocab_size": vocab_size}):
        ctx.note("metadata", "draft", text)


def _has_own(draft: drafts.DraftIr) -> bool:
    """Whether the draft came with logits; none were attached."""
    return draft.draft_vocab_size is not None and RECORD not in (draft.applied or {})


def _drop_hidden(model: ov.Model, result: ov.Node) -> None:
    source = result.input_value(0)
    model.remove_result(result)
    drafts.drop_name(source, Port.LAST_HIDDEN_STATE)


def _remark_on_target(graft: Graft, source: decoder.LmHead, draft: drafts.DraftIr, ctx: Context) -> None:
    bias = None if source.bias is None else source.bias.get_node()
    scaling = [node for node in source.post_ops if node.get_type_name() not in _LAYOUT and not _adds(node, bias)]
    if scaling:
        steps = ", ".join(node.get_type_name() for node in scaling)
        ctx.remark(
            f"the target changes its logits ({steps}); the draft does not: output_multiplier "
            f"{draft.output_multiplier:g}, final_logit_softcapping {draft.final_logit_softcapping:g}"
        )
    vocabulary = graft.target.config.get("vocab_size")
    if isinstance(vocabulary, int) and vocabulary != source.vocab_size:
        ctx.remark(f"padded vocabulary: the output layer has {source.vocab_size} rows for {vocabulary} tokens")


def _adds(node: ov.Node, bias: ov.Node | None) -> bool:
    return bias is not None and any(source.get_node() is bias for source in node.input_values())


def _output_layer(
    source: decoder.LmHead, hidden: ov.Output, names: drafts.NameSpace
) -> tuple[ov.Output, dict[str, object]]:
    """``hidden W^T (+ b)`` with the target's weights, in f32."""
    weight, digest = drafts.transplant(source.weight, names)
    record: dict[str, object] = {"digest": digest}
    wanted, computed = hidden.get_element_type(), weight.get_element_type()
    if wanted != computed:
        hidden = names.give(ir.opset.convert(hidden, computed), "lm_head/input")
    logits = names.give(ir.opset.matmul(hidden, weight, False, source.transpose_b), "lm_head")
    if source.bias is not None:
        bias, record["bias_digest"] = drafts.transplant(source.bias, names)
        logits = names.give(ir.opset.add(logits, bias), "lm_head/biased")
    if wanted != computed:
        logits = names.give(ir.opset.convert(logits, wanted), "lm_head/output")
    return logits, record


def _scaled(logits: ov.Output, draft: drafts.DraftIr, names: drafts.NameSpace) -> ov.Output:
    """``softcap(logits * output_multiplier)``, z-lab's order."""
    element_type = logits.get_element_type()
    if draft.output_multiplier != 1:
        factor = names.constant(draft.output_multiplier, element_type, "lm_head/output_multiplier")
        logits = names.give(ir.opset.multiply(logits, factor), "lm_head/scaled")
    if draft.final_logit_softcapping > 0:
        cap = names.constant(draft.final_logit_softcapping, element_type, "lm_head/final_logit_softcapping")
        logits = names.give(ir.opset.divide(logits, cap), "lm_head/softcap/divide")
        logits = names.give(ir.opset.tanh(logits), "lm_head/softcap/tanh")
        logits = names.give(ir.opset.multiply(logits, cap), "lm_head/softcapped")
    return logits
