"""All built-in passes, each imported at first use: ``from ovgraft.passes import MoveFc`` imports no other pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft._lazy import attach

if TYPE_CHECKING:
    from ovgraft.passes.annotate_hidden_states import AnnotateHiddenStates
    from ovgraft.passes.attach_embedding import AttachEmbedding
    from ovgraft.passes.attach_lm_head import AttachLmHead
    from ovgraft.passes.build_draft import BuildDraft
    from ovgraft.passes.compress_weights import CompressWeights
    from ovgraft.passes.drop_dead_inputs import DropDeadInputs
    from ovgraft.passes.expose_draft_hidden import ExposeDraftHidden
    from ovgraft.passes.expose_hidden_states import ExposeHiddenStates
    from ovgraft.passes.fold_draft_argmax import FoldDraftArgmax
    from ovgraft.passes.fuse_attention import FuseAttention
    from ovgraft.passes.gather_sampled_rows import GatherSampledRows
    from ovgraft.passes.move_fc import MoveFc
    from ovgraft.passes.pack_markov_head import PackMarkovHead
    from ovgraft.passes.paged_attention import PagedAttention
    from ovgraft.passes.per_row_draft import PerRowDraft
    from ovgraft.passes.rename_tensors import RenameTensors
    from ovgraft.passes.select_markov_computation import SelectMarkovComputation
    from ovgraft.passes.set_markov_top_k import SetMarkovTopK
    from ovgraft.passes.set_rt_info import SetRtInfo

__all__ = [
    "AnnotateHiddenStates",
    "AttachEmbedding",
    "AttachLmHead",
    "BuildDraft",
    "CompressWeights",
    "DropDeadInputs",
    "ExposeDraftHidden",
    "ExposeHiddenStates",
    "FoldDraftArgmax",
    "FuseAttention",
    "GatherSampledRows",
    "MoveFc",
    "PackMarkovHead",
    "PagedAttention",
    "PerRowDraft",
    "RenameTensors",
    "SelectMarkovComputation",
    "SetMarkovTopK",
    "SetRtInfo",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "annotate_hidden_states": ("AnnotateHiddenStates",),
        "attach_embedding": ("AttachEmbedding",),
        "attach_lm_head": ("AttachLmHead",),
        "build_draft": ("BuildDraft",),
        "compress_weights": ("CompressWeights",),
        "drop_dead_inputs": ("DropDeadInputs",),
        "expose_draft_hidden": ("ExposeDraftHidden",),
        "expose_hidden_states": ("ExposeHiddenStates",),
        "fold_draft_argmax": ("FoldDraftArgmax",),
        "fuse_attention": ("FuseAttention",),
        "gather_sampled_rows": ("GatherSampledRows",),
        "move_fc": ("MoveFc",),
        "pack_markov_head": ("PackMarkovHead",),
        "paged_attention": ("PagedAttention",),
        "per_row_draft": ("PerRowDraft",),
        "rename_tensors": ("RenameTensors",),
        "select_markov_computation": ("SelectMarkovComputation",),
        "set_markov_top_k": ("SetMarkovTopK",),
        "set_rt_info": ("SetRtInfo",),
    },
)
