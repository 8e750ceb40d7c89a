"""Draft families: what exported drafts say, checkpoint formats, and the pieces grafting is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft._lazy import attach

if TYPE_CHECKING:
    from ovgraft.drafts.draft_ir import DraftIr, find_input, find_result, read_draft
    from ovgraft.drafts.fc import HiddenStateFc, find_fc
    from ovgraft.drafts.grafting import (
        NameSpace,
        check_attached,
        drop_name,
        ensure_weight,
        redirect,
        side_by_side,
        transplant,
        weight_digest,
    )
    from ovgraft.drafts.per_row import RowAttention, RowKinds
    from ovgraft.drafts.records import read_record, write_record
    from ovgraft.drafts.residual import last_residual
    from ovgraft.drafts.to_per_row import ExportedDraft, read_exported, rewrite
    from ovgraft.drafts.vocabulary import check_vocabulary

__all__ = [
    "DraftIr",
    "ExportedDraft",
    "HiddenStateFc",
    "NameSpace",
    "RowAttention",
    "RowKinds",
    "check_attached",
    "check_vocabulary",
    "drop_name",
    "ensure_weight",
    "find_fc",
    "find_input",
    "find_result",
    "last_residual",
    "read_draft",
    "read_exported",
    "read_record",
    "redirect",
    "rewrite",
    "side_by_side",
    "transplant",
    "weight_digest",
    "write_record",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "draft_ir": ("DraftIr", "find_input", "find_result", "read_draft"),
        "fc": ("HiddenStateFc", "find_fc"),
        "grafting": (
            "NameSpace",
            "check_attached",
            "drop_name",
            "ensure_weight",
            "redirect",
            "side_by_side",
            "transplant",
            "weight_digest",
        ),
        "records": ("read_record", "write_record"),
        "residual": ("last_residual",),
        "vocabulary": ("check_vocabulary",),
        "per_row": (
            "RowAttention",
            "RowKinds",
        ),
        "to_per_row": (
            "ExportedDraft",
            "read_exported",
            "rewrite",
        ),
    },
)
