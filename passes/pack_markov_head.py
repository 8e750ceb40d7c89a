"""pack-markov-head: the head of a draft checkpoint becomes a model beside the draft."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ovgraft import drafts, ir
from ovgraft.drafts import markov
from ovgraft.drafts.contract import FileName, Key, Port
from ovgraft.drafts.spec import HeadType
from ovgraft.errors import PostconditionError, PreconditionError, Reason
from ovgraft.passbase import Context, Pass, option

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.drafts.checkpoint import Checkpoint
    from ovgraft.graft import Graft, Package

_HERE = "."
"""The checkpoint in the record of a head that was packed from its own folder."""


@dataclass(frozen=True, kw_only=True)
class PackMarkovHead(Pass):
    """Build openvino_markov_head_model from a checkpoint and announce it on the draft.

    The model holds the dense step and the Top-K candidate scorer over one copy of the weights, as far as the head has
    them: vanilla and gated both, rnn the dense step, dflash2 the scorer. Ports, shapes and metadata are in
    docs/markov-head.md. The head stays over the target's vocabulary; next-token rows of tokens that a pruned draft
    cannot propose are zero. Weights keep the checkpoint's precision.

    The backbone gets ``dflash/markov_head_type`` and ``dflash/markov_rank``; where it names its mask token, layers, row
    offset or vocabulary, they must be the checkpoint's. Also works on a checkpoint alone, and leaves a draft that
    has no head as it is.
    """

    name: ClassVar[str] = "pack-markov-head"

    checkpoint: str | None = option(
        None, "checkpoint folder; the draft itself when it is one", example="drafts/dspark", path=True
    )
    top_k: int | None = option(
        None, "candidates the scorer keeps per row; the checkpoint's own number, else min(64, draft vocabulary)"
    )
    precision: Literal["checkpoint", "f16", "f32"] = option("checkpoint", "what the weights are stored in")
    confidence: bool = option(False, "add the confidence head as a third computation")

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Build it and add it.

        Raises:
            CheckpointError: The checkpoint cannot be read or has no head.
            PreconditionError: It does not belong to this draft or target, top-k is out of range, or another head is
                there.
        """
        role = graft.draft_role
        package = graft.package(role)
        if self.checkpoint is None and _is_headless(package):
            ctx.remark("unchanged: the draft has no Markov head")
            return
        present = package.get(FileName.MARKOV_HEAD)
        if self.checkpoint is None and not package.is_checkpoint and present is not None:
            self._check_present(present, package)
            ctx.remark("unchanged: the draft has its head")
            return
        checkpoint, said = self._read(package)
        for warning in checkpoint.spec.warnings:
            ctx.remark(str(warning))
        weights = markov.read_head_weights(checkpoint)
        top_k = checkpoint.spec.head.top_k if self.top_k is None else self.top_k
        head = markov.build_head(weights, top_k=top_k, precision=self.precision, confidence=self.confidence)
        digest = drafts.config_digest(package) if said == _HERE else markov.config_digest(checkpoint)
        ir.set_text(
            head, Key.MARKOV_HEAD_SOURCE, json.dumps({"checkpoint": said, "config_blake3": digest}, sort_keys=True)
        )
        backbone = package.get(package.main_name)
        _check_fit(graft, backbone, head, checkpoint)
        there = package.get(FileName.MARKOV_HEAD)
        if there is None:
            package.add(FileName.MARKOV_HEAD, head)
            facts = markov.read_facts(head)
            kind = weights.w1.dtype.name if self.precision == "checkpoint" else self.precision
            kept = f", top-k {facts.top_k}" if facts.top_k else ""
            text = f"{FileName.MARKOV_HEAD}: {facts.type} head of rank {facts.rank} over {facts.vocab_size} tokens"
            ctx.note("add", role, f"{text}, {kind}{kept}: {', '.join(markov.present_computations(head))}")
        else:
            difference = ir.same_structure(there, head)
            if difference is not None:
                raise PreconditionError(
                    "the draft has another Markov head already",
                    file=package.path,
                    found=difference,
                    hint=f"start from the draft without {FileName.MARKOV_HEAD}.xml",
                )
            ctx.remark("unchanged: this head is packed already")
        if backbone is None:
            ctx.remark("the draft has no IR yet, so there is no backbone to announce the head on")
        elif markov.read_advertised(backbone)[1] == 0:
            spec = checkpoint.spec.head
            ir.set_text(backbone, Key.MARKOV_HEAD_TYPE, str(spec.type))
            ir.set_text(backbone, Key.MARKOV_RANK, str(spec.rank))
            ctx.note("metadata", role, f"markov_head_type {spec.type}, markov_rank {spec.rank}")

    def ensures(self, graft: Graft) -> None:
        """The head keeps the contract, and backbone and target agree with it.

        Raises:
            PostconditionError: They do not.
        """
        package = graft.package(graft.draft_role)
        head, backbone = package.get(FileName.MARKOV_HEAD), package.get(package.main_name)
        if head is None:
            if self.checkpoint is None and _is_headless(package):
                return
            raise PostconditionError("there is no head")
        reasons = markov.head_reasons(head)
        if backbone is not None:
            reasons += markov.backbone_reasons(backbone, head, _target_vocab_size(graft))
        if reasons:
            raise PostconditionError("; ".join(map(str, reasons)), reasons=reasons)

    def _check_present(self, head: ov.Model, package: Package) -> None:
        """Refuse a head that is not as the options ask for, and cannot become so without its checkpoint."""
        reasons = []
        if self.top_k is not None and self.top_k != markov.read_facts(head).top_k:
            reasons.append(Reason("top-k", f"its top-k is {markov.read_facts(head).top_k}, not {self.top_k}"))
        if self.confidence and markov.Computation.CONFIDENCE not in markov.present_computations(head):
            reasons.append(Reason("confidence", "it has no confidence head"))
        stored = markov.stored_precision(head)
        if self.precision not in ("checkpoint", stored):
            reasons.append(Reason("precision", f"its weights are stored in {stored}, not {self.precision}"))
        if reasons:
            raise PreconditionError(
                f"the draft has another Markov head already: {'; '.join(map(str, reasons))}",
                file=package.path,
                hint="say checkpoint=FOLDER and start from the draft without the head; set-markov-top-k changes K",
                reasons=tuple(reasons),
            )

    def _read(self, package: Package) -> tuple[Checkpoint, str]:
        """The checkpoint and its name without machine paths."""
        if self.checkpoint is not None:
            folder = Path(self.checkpoint)
            return drafts.read_checkpoint(folder), folder.resolve().name
        if not package.is_checkpoint:
            raise PreconditionError(
                "no checkpoint to take the head from",
                file=package.path,
                hint="say checkpoint=FOLDER; a draft folder is used by itself when it is a checkpoint",
            )
        return drafts.read_checkpoint(package.folder), _HERE


def _is_headless(package: Package) -> bool:
    """Whether the draft says of itself that it has no head; one that says nothing may have one somewhere."""
    if package.is_checkpoint:
        return drafts.read_checkpoint(package.folder).spec.head.type is HeadType.NONE
    model = package.model
    return (
        ir.get_text(model, Key.VERSION) is not None
        and markov.read_advertised(model)[0] is HeadType.NONE
        and package.get(FileName.MARKOV_HEAD) is None
    )


def _target_vocab_size(graft: Graft) -> int | None:
    """Width of the target's logits; None when there is none to compare with."""
    if graft.draft is None:
        return None
    result = drafts.find_result(graft.target.model, Port.LOGITS)
    if result is None:
        return None
    shape = result.get_output_partial_shape(0)
    return int(shape[-1].get_length()) if shape.rank.is_static and shape[-1].is_static else None


def _check_fit(graft: Graft, backbone: ov.Model | None, head: ov.Model, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is not this draft's or this target's.

    Raises:
        PreconditionError: With all reasons.
    """
    package, spec = graft.package(graft.draft_role), checkpoint.spec
    vocabulary, reasons = _target_vocab_size(graft), []
    if vocabulary is not None and vocabulary != spec.vocabulary.size:
        text = f"the checkpoint is over {spec.vocabulary.size} tokens, the target over {vocabulary}"
        reasons.append(Reason("vocabulary", text))
    if backbone is not None:
        announced = markov.read_advertised(backbone)[1] > 0
        found = markov.backbone_reasons(backbone, head, None)
        reasons += [reason for reason in found if announced or reason.code != "head-unannounced"]
        wanted = spec.rt_info()
        for key in (Key.MASK_TOKEN_ID, Key.TARGET_LAYER_IDS, Key.CANDIDATE_POSITION_OFFSET, Key.VOCAB_SIZE):
            said = ir.get_text(backbone, key)
            if said is not None and _numbers(said) != _numbers(wanted[key]):
                text = f"{'/'.join(key)} is {said} on the draft and {wanted[key]} in the checkpoint"
                reasons.append(Reason("other-draft", text))
    if reasons:
        text = "; ".join(map(str, reasons))
        raise PreconditionError(
            f"the checkpoint does not belong here: {text}", file=package.path, reasons=tuple(reasons)
        )


def _numbers(text: str) -> list[str]:
    """Layer ids are written with commas, spaces or as JSON, depending on the exporter."""
    return text.strip("[] ").replace(",", " ").split()
