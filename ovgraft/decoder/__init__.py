"""Reading a decoder LM graph: embedding, layers, attention and state, lm_head. No name of a node is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft._lazy import attach

if TYPE_CHECKING:
    from ovgraft.decoder.annotation import (
        annotation_text,
        check_annotation,
        configured_layer_count,
        numbers_in_names,
        parse_annotation,
        resolve_annotation,
    )
    from ovgraft.decoder.attention import Attention, State, read_attention, read_states
    from ovgraft.decoder.compression import FLOAT_FORMATS, Matrix, compress, read_matrices
    from ovgraft.decoder.decomposed import Decomposed, find_decomposed
    from ovgraft.decoder.embedding import read_embedding
    from ovgraft.decoder.fusing import fuse
    from ovgraft.decoder.layers import find_layers
    from ovgraft.decoder.lm_head import read_lm_head
    from ovgraft.decoder.masks import MaskFacts, read_masks
    from ovgraft.decoder.paging import (
        ATTENTION,
        PAGED_TYPES,
        PagedOp,
        fold,
        read_paged,
        readiness,
    )
    from ovgraft.decoder.places import Place, describe_output
    from ovgraft.decoder.read import read_decoder
    from ovgraft.decoder.to_paged import (
        AttentionFacts,
        Converted,
        attention_facts,
        connect_token_types,
        convert_to_paged,
        differences,
        match_port_names,
        name_new_nodes,
        output_problems,
        position_problems,
        repair,
    )
    from ovgraft.decoder.types import Decoder, Embedding, Layer, LayerConvention, LayerStack, LmHead

__all__ = [
    "ATTENTION",
    "FLOAT_FORMATS",
    "PAGED_TYPES",
    "Attention",
    "AttentionFacts",
    "Converted",
    "Decoder",
    "Decomposed",
    "Embedding",
    "Layer",
    "LayerConvention",
    "LayerStack",
    "LmHead",
    "MaskFacts",
    "Matrix",
    "PagedOp",
    "Place",
    "State",
    "annotation_text",
    "attention_facts",
    "check_annotation",
    "compress",
    "configured_layer_count",
    "connect_token_types",
    "convert_to_paged",
    "describe_output",
    "differences",
    "find_decomposed",
    "find_layers",
    "fold",
    "fuse",
    "match_port_names",
    "name_new_nodes",
    "numbers_in_names",
    "output_problems",
    "parse_annotation",
    "position_problems",
    "read_attention",
    "read_decoder",
    "read_embedding",
    "read_lm_head",
    "read_masks",
    "read_matrices",
    "read_paged",
    "read_states",
    "readiness",
    "repair",
    "resolve_annotation",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "annotation": (
            "annotation_text",
            "check_annotation",
            "configured_layer_count",
            "numbers_in_names",
            "parse_annotation",
            "resolve_annotation",
        ),
        "attention": ("Attention", "State", "read_attention", "read_states"),
        "compression": ("FLOAT_FORMATS", "Matrix", "compress", "read_matrices"),
        "embedding": ("read_embedding",),
        "layers": ("find_layers",),
        "lm_head": ("read_lm_head",),
        "places": ("Place", "describe_output"),
        "read": ("read_decoder",),
        "types": ("Decoder", "Embedding", "Layer", "LayerConvention", "LayerStack", "LmHead"),
        "decomposed": (
            "Decomposed",
            "find_decomposed",
        ),
        "fusing": ("fuse",),
        "masks": (
            "MaskFacts",
            "read_masks",
        ),
        "paging": (
            "ATTENTION",
            "PAGED_TYPES",
            "PagedOp",
            "fold",
            "read_paged",
            "readiness",
        ),
        "to_paged": (
            "AttentionFacts",
            "Converted",
            "attention_facts",
            "connect_token_types",
            "convert_to_paged",
            "differences",
            "match_port_names",
            "name_new_nodes",
            "output_problems",
            "position_problems",
            "repair",
        ),
    },
)
