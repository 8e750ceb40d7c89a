"""fold-draft-argmax: the draft itself picks the best token of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ovgraft import drafts, ir
from ovgraft.drafts import markov
from ovgraft.drafts.contract import FileName, Key, Port
from ovgraft.errors import PostconditionError, PreconditionError
from ovgraft.passbase import Context, ModelRole, Pass, option

if TYPE_CHECKING:
    from ovgraft.graft import Graft, Package

RECORD = "argmax"
"""Name of this pass's part of the record ``ovgraft/applied``."""


@dataclass(frozen=True, kw_only=True)
class FoldDraftArgmax(Pass):
    """Add the output draft_token_ids: the best token of each row of the draft's logits.

    i64, the shape of ``logits`` without its last axis, target ids: a pruned draft's d2t is applied. Multiplier and soft
    cap count, in the graph already or added here; of equal values the lower draft id wins. A row with NaN, +inf or no
    finite value gives -1.

    For drafts without a Markov head, whose rows do not depend on each other.
    """

    name: ClassVar[str] = "fold-draft-argmax"

    keep_logits: bool = option(True, "keep logits (and d2t) beside draft_token_ids")

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Add it.

        Raises:
            PreconditionError: No draft, a draft with a head, or no logits of known width.
        """
        role, package = _draft(graft)
        _refuse_head(package)
        draft = drafts.read_draft(package)
        model = draft.model
        logits_result, d2t_result = (drafts.find_result(model, name) for name in (Port.LOGITS, Port.D2T))
        applied = dict(draft.applied or {})
        if drafts.find_result(model, Port.DRAFT_TOKEN_IDS) is not None:
            if RECORD not in applied:
                raise PreconditionError("the draft has an output draft_token_ids of its own", file=package.path)
            if (logits_result is not None) != self.keep_logits:
                raise PreconditionError(
                    "draft_token_ids is there already, with another choice about logits",
                    file=package.path,
                    expected=f"keep-logits={str(self.keep_logits).lower()}",
                    hint="start from the draft as exported",
                )
            ctx.remark("unchanged: draft_token_ids is there already")
            return
        if logits_result is None:
            raise PreconditionError(
                "the draft has no output logits", file=package.path, hint="attach-lm-head gives it the target's"
            )
        logits = logits_result.input_value(0)
        if draft.draft_vocab_size is None:
            raise PreconditionError(
                "the width of the draft's logits is unknown",
                file=package.path,
                node=ir.node_ref(logits.get_node(), model),
                found=logits.get_partial_shape(),
            )
        _check_tokens(draft, graft, role)

        names = drafts.NameSpace(model, "draft")
        factors = (draft.output_multiplier, draft.final_logit_softcapping)
        rows = markov.scaled_logits(logits, *factors, names)
        token = markov.best_token(rows, draft.d2t, names)
        model.add_results([ir.make_result(token, Port.DRAFT_TOKEN_IDS)])
        what = f"best of {draft.draft_vocab_size} tokens per row"
        mapped = "" if draft.d2t is None else ", mapped by d2t"
        ctx.note("add", role, f"output draft_token_ids: {what}{mapped}", ir.node_ref(token.get_node(), model))
        applied[RECORD] = {"output_multiplier": factors[0], "final_logit_softcapping": factors[1]}
        drafts.write_record(model, Key.APPLIED, applied)
        if not self.keep_logits:
            dropped = [result for result in (logits_result, d2t_result) if result is not None]
            for result in dropped:
                model.remove_result(result)
            # nothing is left for a host to apply them to
            ir.set_text(model, Key.OUTPUT_MULTIPLIER, "1")
            ir.set_text(model, Key.FINAL_LOGIT_SOFTCAPPING, "0")
            ctx.note("remove", role, f"output {' and '.join(result.get_friendly_name() for result in dropped)}")
            if text := drafts.correct_config(package, drafts.LOGITS_IN_GRAPH):
                ctx.note("metadata", role, text)
        model.validate_nodes_and_infer_types()

    def ensures(self, graft: Graft) -> None:
        """The output is there, i64, and logits are as asked for.

        Raises:
            PostconditionError: They are not.
        """
        model = _draft(graft)[1].model
        tokens, logits = (drafts.find_result(model, name) for name in (Port.DRAFT_TOKEN_IDS, Port.LOGITS))
        if tokens is None or tokens.get_output_element_type(0).get_type_name() != "i64":
            raise PostconditionError("there is no i64 output draft_token_ids")
        if (logits is not None) != self.keep_logits:
            raise PostconditionError("logits", expected="kept" if self.keep_logits else "dropped")


def _draft(graft: Graft) -> tuple[ModelRole, Package]:
    """The draft, which may be the one model given."""
    return ("target", graft.target) if graft.draft is None else ("draft", graft.draft)


def _refuse_head(package: Package) -> None:
    head, rank = markov.read_advertised(package.model)
    if rank or package.get(FileName.MARKOV_HEAD) is not None:
        raise PreconditionError(
            "the draft has a Markov head, so the best token of a row depends on the one before",
            file=package.path,
            found=f"{head} head of rank {rank}" if rank else f"{FileName.MARKOV_HEAD}.xml",
        )


def _check_tokens(draft: drafts.DraftIr, graft: Graft, role: ModelRole) -> None:
    """Every id the output can give must be a token of the target."""
    vocab_size = draft.vocab_size
    if role == "draft":
        drafts.check_vocabulary(draft, graft.target)
    if draft.d2t is not None and vocab_size is not None:
        largest = markov.largest_token(draft.d2t)
        if largest >= vocab_size:
            raise PreconditionError(
                "d2t maps a draft token outside the target vocabulary",
                file=draft.file,
                expected=f"0 to {vocab_size - 1}",
                found=largest,
            )
