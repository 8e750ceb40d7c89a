"""Markov heads: one model over one copy of the tables, a dense step and a Top-K candidate scorer.

And the argmax of drafts without a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft._lazy import attach

if TYPE_CHECKING:
    from ovgraft.drafts.markov.argmax import best_token, largest_token, scaled_logits
    from ovgraft.drafts.markov.build import DEFAULT_TOP_K, build_head
    from ovgraft.drafts.markov.check import backbone_reasons, head_reasons, package_reasons, require_head
    from ovgraft.drafts.markov.computations import (
        TOP_K_CONSTANT,
        Computation,
        computations_of,
        ports,
    )
    from ovgraft.drafts.markov.facts import (
        HeadFacts,
        present_computations,
        read_advertised,
        read_facts,
        stored_precision,
    )
    from ovgraft.drafts.markov.from_checkpoint import config_digest, read_head_weights
    from ovgraft.drafts.markov.head_weights import HeadWeights, Projection
    from ovgraft.drafts.markov.inputs import HeadInputError, block_begins
    from ovgraft.drafts.markov.runner import HeadRunner
    from ovgraft.drafts.markov.select import select_computation, set_top_k
    from ovgraft.drafts.markov.topk import exact_top_k

__all__ = [
    "DEFAULT_TOP_K",
    "TOP_K_CONSTANT",
    "Computation",
    "HeadFacts",
    "HeadInputError",
    "HeadRunner",
    "HeadWeights",
    "Projection",
    "backbone_reasons",
    "best_token",
    "block_begins",
    "build_head",
    "computations_of",
    "config_digest",
    "exact_top_k",
    "head_reasons",
    "largest_token",
    "package_reasons",
    "ports",
    "present_computations",
    "read_advertised",
    "read_facts",
    "read_head_weights",
    "require_head",
    "scaled_logits",
    "select_computation",
    "set_top_k",
    "stored_precision",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "argmax": ("best_token", "largest_token", "scaled_logits"),
        "build": ("DEFAULT_TOP_K", "build_head"),
        "check": ("backbone_reasons", "head_reasons", "package_reasons", "require_head"),
        "computations": (
            "TOP_K_CONSTANT",
            "Computation",
            "computations_of",
            "ports",
        ),
        "facts": ("HeadFacts", "present_computations", "read_advertised", "read_facts", "stored_precision"),
        "from_checkpoint": ("config_digest", "read_head_weights"),
        "head_weights": ("HeadWeights", "Projection"),
        "inputs": ("HeadInputError", "block_begins"),
        "runner": ("HeadRunner",),
        "select": ("select_computation", "set_top_k"),
        "topk": ("exact_top_k",),
    },
)
