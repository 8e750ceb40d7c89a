"""``build-draft``: the draft's IR from its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ovgraft import decoder, drafts
from ovgraft.drafts.contract import FileName
from ovgraft.errors import PostconditionError, PreconditionError
from ovgraft.passbase import Context, Pass, option

if TYPE_CHECKING:
    from ovgraft.drafts.checkpoint import Checkpoint
    from ovgraft.graft import Graft


@dataclass(frozen=True, kw_only=True)
class BuildDraft(Pass):
    """Build the IR of a draft that is a checkpoint, with weights that stay in its files.

    A draft that shares the target's embedding and output layer comes out headless (inputs_embeds in,
    last_hidden_state out) and gets them from attach-embedding and attach-lm-head; one with tables of its own carries
    them. Copies of the target's tables in the checkpoint are compared with the target and left out.
    """

    name: ClassVar[str] = "build-draft"
    needs_draft: ClassVar[bool] = True

    form: Literal["sdpa", "per-row"] = option(
        "sdpa", "sdpa: the released exporter's ports; per-row: one row axis, what paged-attention converts"
    )
    sliding_in_block: Literal["auto", "causal", "bidirectional"] = option(
        "auto", "whether a row of a sliding layer sees later rows of its block; auto: as the checkpoint says"
    )
    keep_copies: bool = option(False, "keep frozen copies of the target's tables that are not the target's own")

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Read, check against the target, build.

        Raises:
            CheckpointError: The checkpoint cannot be read, or its copies are not the target's.
            PreconditionError: It does not fit the target.
        """
        package = graft.package("draft")
        if not package.is_checkpoint:
            ctx.remark("unchanged: the draft has its IR")
            return
        if package.main_name in package.models:
            ctx.remark("unchanged: the draft was built already")
            return
        checkpoint = drafts.read_checkpoint(package.folder)
        for warning in checkpoint.spec.warnings:
            ctx.remark(str(warning))
        checkpoint = self._fitted(graft, checkpoint, ctx)
        drafts.check_finite(checkpoint, ctx.progress)
        model = drafts.build_draft(checkpoint, self.form, sliding_in_block=self.sliding_in_block)
        package.model = model
        spec = checkpoint.spec
        text = f"{spec.format} checkpoint built as {self.form}: {spec.family}, {spec.backbone.num_hidden_layers} layers"
        ctx.note("add", "draft", f"{text}, target layers {', '.join(map(str, spec.layer_ids))}")

    def ensures(self, graft: Graft) -> None:
        """The draft says what it is, and ovgraft reads it as one.

        Raises:
            PostconditionError: It does not.
        """
        model = graft.package("draft").get(graft.package("draft").main_name)
        if model is None:
            raise PostconditionError("the draft has no model")
        drafts.read_draft(graft.package("draft"))

    def _fitted(self, graft: Graft, checkpoint: Checkpoint, ctx: Context) -> Checkpoint:
        """The checkpoint after its widths, vocabulary and tables were held against the target."""
        target = decoder.read_decoder(graft.target.model)
        embedding = decoder.read_embedding(graft.target.get(FileName.TEXT_EMBEDDINGS) or graft.target.model)
        reasons = drafts.target_mismatches(
            checkpoint.spec,
            num_layers=len(target.layers),
            hidden_size=target.lm_head.width,
            vocab_size=embedding.vocab_size,
        )
        if reasons:
            text = "; ".join(reason.message for reason in reasons)
            raise PreconditionError(f"the draft does not fit the target: {text}", file=checkpoint.path, reasons=reasons)
        if not checkpoint.spec.frozen_copies:
            return checkpoint
        resolved = drafts.resolve_shared(checkpoint, embedding.table, target.lm_head.weight, keep=self.keep_copies)
        for warning in resolved.spec.warnings[len(checkpoint.spec.warnings) :]:
            ctx.remark(str(warning))
        return resolved
