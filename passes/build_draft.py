"""``build-draft``: the draft's IR from its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ovgraft import decoder, drafts, ir
from ovgraft.drafts.contract import FileName, Key
from ovgraft.errors import PostconditionError, PreconditionError, Reason
from ovgraft.passbase import Context, Pass, option

if TYPE_CHECKING:
    from ovgraft.drafts.checkpoint import Checkpoint
    from ovgraft.graft import Graft, Package


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
            PreconditionError: It does not fit the target, or the draft has an IR that is otherwise than asked for.
        """
        role = graft.draft_role
        package = graft.package(role)
        if not package.is_checkpoint or package.main_name in package.models:
            self._check_present(package, alone=graft.draft is None)
            ctx.remark(f"unchanged: the draft {'was built already' if package.is_checkpoint else 'has its IR'}")
            return
        checkpoint = drafts.read_checkpoint(package.folder)
        for warning in checkpoint.spec.warnings:
            ctx.remark(str(warning))
        had_copies = checkpoint.spec.frozen_copies
        checkpoint = self._alone(checkpoint) if graft.draft is None else self._fitted(graft, checkpoint, ctx)
        drafts.check_finite(checkpoint, ctx.progress)
        model = drafts.build_draft(checkpoint, self.form, sliding_in_block=self.sliding_in_block)
        left_out = had_copies and not checkpoint.spec.own_embedding
        record = {
            "copies_left_out": left_out,
            "sliding_in_block": drafts.sliding_rows(checkpoint.spec, self.sliding_in_block),
        }
        drafts.write_record(model, Key.BUILT, record)
        package.model = model
        spec = checkpoint.spec
        count = spec.backbone.num_hidden_layers
        text = f"{spec.format} checkpoint built as {self.form}: {spec.family}, {count} layer{'s' if count > 1 else ''}"
        ctx.note("add", role, f"{text}, target layers {', '.join(map(str, spec.layer_ids))}")
        in_graph = drafts.EMBEDDING_IN_GRAPH if spec.own_embedding else {}
        if corrected := drafts.correct_config(package, in_graph | (drafts.LOGITS_IN_GRAPH if spec.own_lm_head else {})):
            ctx.note("metadata", role, corrected)
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

    def _check_present(self, package: Package, *, alone: bool) -> None:
        """Refuse an IR that is not as the options ask for: it is not built a second time."""
        model = package.model
        form = "per-row" if ir.get_text(model, Key.INPUT_LAYOUT) is not None else "sdpa"
        record = drafts.read_record(model, Key.BUILT, package.path) or {}
        reasons = []
        if form != self.form:
            reasons.append(Reason("form", f"its form is {form}, not {self.form}"))
        recorded = record.get("sliding_in_block")
        if self.sliding_in_block != "auto" and (differs := self._sees_otherwise(package, recorded)):
            reasons.append(Reason("sliding-in-block", differs))
        if self.keep_copies and alone and record.get("copies_left_out"):
            reasons.append(Reason("copies", "the copies of the target's tables were left out"))
        if reasons:
            raise PreconditionError(
                f"the draft has its IR already: {'; '.join(map(str, reasons))}",
                file=package.path,
                hint="build it anew from its checkpoint; per-row-draft makes the per-row form of an exported draft",
                reasons=tuple(reasons),
            )

    def _sees_otherwise(self, package: Package, recorded: str | None) -> str:
        """Why sliding layers of an IR are not as asked for; empty when they are, or when none slides."""
        wanted = self.sliding_in_block
        if recorded is not None:
            return f"its sliding layers are {recorded}, not {wanted}" if recorded not in ("", wanted) else ""
        if drafts.read_draft(package).family == "eagle3":
            return "an Eagle-3 draft has no block"
        for sees in drafts.read_all_row_attention(ir.Graph(package.model)):
            if isinstance(sees, str):
                return f"whether its sliding layers are {wanted} cannot be told: {sees}"
            if sees.window and sees.in_block != wanted:
                return f"its sliding layers are {sees.in_block}, not {wanted}"
        return ""

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
        if spec.num_target_layers is None:
            for warning in drafts.last_layer_warning(spec, len(target.layers)):
                ctx.remark(str(warning))
        if spec.shares_embedding and not spec.own_mask_embedding:
            found = drafts.mask_row_warning(embedding.table, spec.mask_token_id)
            if found is not None:
                ctx.remark(str(found))
        return checkpoint
