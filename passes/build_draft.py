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

    Also works on a checkpoint alone, then nothing is compared: copies of a target's tables are refused unless they are
    to be kept.
    """

    name: ClassVar[str] = "build-draft"

    form: Literal["sdpa", "per-row"] = option(
        "sdpa", "sdpa: the released exporter's ports; per-row: one row axis, what paged-attention converts"
    )
    sliding_in_block: Literal["auto", "causal", "bidirectional"] = option(
        "auto", "whether a row of a sliding layer sees later rows of its block; auto: as the checkpoint says"
    )
    keep_copies: bool = option(
        False, "keep copies of a target's tables that are not this target's own; without a target, all"
    )

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Read, check against the target, build.

        Raises:
            CheckpointError: The checkpoint cannot be read, or its copies are not the target's.
            PreconditionError: It does not fit the target.
        """
        role = graft.draft_role
        package = graft.package(role)
        if not package.is_checkpoint:
            ctx.remark("unchanged: the draft has its IR")
            return
        if package.main_name in package.models:
            ctx.remark("unchanged: the draft was built already")
            return
        checkpoint = drafts.read_checkpoint(package.folder)
        for warning in checkpoint.spec.warnings:
            ctx.remark(str(warning))
        checkpoint = self._alone(checkpoint) if graft.draft is None else self._fitted(graft, checkpoint, ctx)
        drafts.check_finite(checkpoint, ctx.progress)
        package.model = drafts.build_draft(checkpoint, self.form, sliding_in_block=self.sliding_in_block)
        spec = checkpoint.spec
        count = spec.backbone.num_hidden_layers
        text = f"{spec.format} checkpoint built as {self.form}: {spec.family}, {count} layer{'s' if count > 1 else ''}"
        ctx.note("add", role, f"{text}, target layers {', '.join(map(str, spec.layer_ids))}")
        if spec.own_mask_embedding and not spec.own_embedding:
            ctx.remark("the draft has a mask embedding of its own: attach-embedding puts it in, a host must otherwise")

    def ensures(self, graft: Graft) -> None:
        """The draft says what it is, and ovgraft reads it as one.

        Raises:
            PostconditionError: It does not.
        """
        package = graft.package(graft.draft_role)
        if package.get(package.main_name) is None:
            raise PostconditionError("the draft has no model")
        drafts.read_draft(package)

    def _alone(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint as its own word says."""
        if checkpoint.spec.frozen_copies and not self.keep_copies:
            raise PreconditionError(
                "the checkpoint carries copies of its target's embedding and output layer",
                file=checkpoint.path,
                hint="name the target: they are compared with its own and left out; or keep them with keep-copies",
            )
        return checkpoint

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
        if checkpoint.spec.frozen_copies:
            known = len(checkpoint.spec.warnings)
            checkpoint = drafts.resolve_shared(
                checkpoint, embedding.table, target.lm_head.weight, keep=self.keep_copies
            )
            for warning in checkpoint.spec.warnings[known:]:
                ctx.remark(str(warning))
        spec = checkpoint.spec
        if spec.shares_embedding and not spec.own_mask_embedding:
            found = drafts.mask_row_warning(embedding.table, spec.mask_token_id)
            if found is not None:
                ctx.remark(str(found))
        return checkpoint
