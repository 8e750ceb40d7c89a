"""Draft backbones, heads, lattices and walks in numpy at f64: slow, plain, and what graphs are compared with."""

from __future__ import annotations

from ovgraft.drafts.reference.backbone import ReferenceBackbone, ReferenceCache, grouped_convolution
from ovgraft.drafts.reference.heads import ReferenceHead, sigmoid
from ovgraft.drafts.reference.lattice import lattice, top_k
from ovgraft.drafts.reference.rotary import rotary_frequencies
from ovgraft.drafts.reference.rows import scaled_rows, target_ids, to_target_vocabulary
from ovgraft.drafts.reference.walks import Walk, softmax, walk_dense, walk_lattice

__all__ = [
    "ReferenceBackbone",
    "ReferenceCache",
    "ReferenceHead",
    "Walk",
    "grouped_convolution",
    "lattice",
    "rotary_frequencies",
    "scaled_rows",
    "sigmoid",
    "softmax",
    "target_ids",
    "to_target_vocabulary",
    "top_k",
    "walk_dense",
    "walk_lattice",
]
