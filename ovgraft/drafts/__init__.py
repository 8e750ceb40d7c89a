"""Draft families: what exported drafts say, checkpoint formats, and the pieces grafting is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft._lazy import attach

if TYPE_CHECKING:
    from ovgraft.drafts.building.draft import build_draft, sliding_rows
    from ovgraft.drafts.building.finite import check_finite
    from ovgraft.drafts.checkpoint import Checkpoint, is_checkpoint, read_checkpoint
    from ovgraft.drafts.config_file import (
        EMBEDDING_IN_GRAPH,
        LOGITS_IN_GRAPH,
        config_digest,
        correct_config,
        tied_tables,
    )
    from ovgraft.drafts.draft_ir import (
        EAGLE3_LEAST_LAYERS,
        DraftIr,
        eagle3_default_layers,
        find_input,
        find_result,
        read_draft,
    )
    from ovgraft.drafts.fc import HiddenStateFc, find_fc
    from ovgraft.drafts.grafting import (
        NameSpace,
        add_output,
        check_attached,
        check_width,
        drop_name,
        ensure_weight,
        redirect,
        side_by_side,
        transplant,
        weight_digest,
    )
    from ovgraft.drafts.layers import DraftTables, read_draft_layers, read_draft_tables
    from ovgraft.drafts.mask_row import mask_row_warning, read_mask_embedding
    from ovgraft.drafts.per_row import RowAttention, RowKinds
    from ovgraft.drafts.records import read_record, write_record
    from ovgraft.drafts.residual import last_residual
    from ovgraft.drafts.row_attention import read_all_row_attention, read_row_attention
    from ovgraft.drafts.shared_tables import Match, compare_table, resolve_shared
    from ovgraft.drafts.spec import DraftSpec, Source
    from ovgraft.drafts.target_fit import last_layer_warning, target_mismatches
    from ovgraft.drafts.to_per_row import ExportedDraft, read_exported, rewrite
    from ovgraft.drafts.vocabulary import check_vocabulary
    from ovgraft.drafts.weight_source import StoredTensor, WeightSource, open_weights

__all__ = [
    "EAGLE3_LEAST_LAYERS",
    "EMBEDDING_IN_GRAPH",
    "LOGITS_IN_GRAPH",
    "Checkpoint",
    "DraftIr",
    "DraftSpec",
    "DraftTables",
    "ExportedDraft",
    "HiddenStateFc",
    "Match",
    "NameSpace",
    "RowAttention",
    "RowKinds",
    "Source",
    "StoredTensor",
    "WeightSource",
    "add_output",
    "build_draft",
    "check_attached",
    "check_finite",
    "check_vocabulary",
    "check_width",
    "compare_table",
    "config_digest",
    "correct_config",
    "drop_name",
    "eagle3_default_layers",
    "ensure_weight",
    "find_fc",
    "find_input",
    "find_result",
    "is_checkpoint",
    "last_layer_warning",
    "last_residual",
    "mask_row_warning",
    "open_weights",
    "read_all_row_attention",
    "read_checkpoint",
    "read_draft",
    "read_draft_layers",
    "read_draft_tables",
    "read_exported",
    "read_mask_embedding",
    "read_record",
    "read_row_attention",
    "redirect",
    "resolve_shared",
    "rewrite",
    "side_by_side",
    "sliding_rows",
    "target_mismatches",
    "tied_tables",
    "transplant",
    "weight_digest",
    "write_record",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "building.draft": ("build_draft", "sliding_rows"),
        "building.finite": ("check_finite",),
        "checkpoint": ("Checkpoint", "is_checkpoint", "read_checkpoint"),
        "config_file": (
            "EMBEDDING_IN_GRAPH",
            "LOGITS_IN_GRAPH",
            "config_digest",
            "correct_config",
            "tied_tables",
        ),
        "draft_ir": (
            "EAGLE3_LEAST_LAYERS",
            "DraftIr",
            "eagle3_default_layers",
            "find_input",
            "find_result",
            "read_draft",
        ),
        "fc": ("HiddenStateFc", "find_fc"),
        "grafting": (
            "NameSpace",
            "add_output",
            "check_attached",
            "check_width",
            "drop_name",
            "ensure_weight",
            "redirect",
            "side_by_side",
            "transplant",
            "weight_digest",
        ),
        "layers": ("DraftTables", "read_draft_layers", "read_draft_tables"),
        "mask_row": ("mask_row_warning", "read_mask_embedding"),
        "records": ("read_record", "write_record"),
        "residual": ("last_residual",),
        "row_attention": ("read_all_row_attention", "read_row_attention"),
        "shared_tables": ("Match", "compare_table", "resolve_shared"),
        "spec": ("DraftSpec", "Source"),
        "target_fit": ("last_layer_warning", "target_mismatches"),
        "vocabulary": ("check_vocabulary",),
        "weight_source": ("StoredTensor", "WeightSource", "open_weights"),
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
