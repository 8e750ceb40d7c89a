"""Reading a decoder LM graph: embedding, layers, attention and state, lm_head. No name of a node is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft._lazy import attach

if TYPE_CHECKING:
    from ovgraft.decoder.annotation import (
        annotation_text,
        check_annotation,
        configured_layer_count,
        parse_annotation,
    )
    from ovgraft.decoder.embedding import read_embedding
    from ovgraft.decoder.layers import find_layers
    from ovgraft.decoder.lm_head import read_lm_head
    from ovgraft.decoder.places import Place, describe_output
    from ovgraft.decoder.read import read_decoder
    from ovgraft.decoder.types import Decoder, Embedding, Layer, LayerConvention, LmHead

__all__ = [
    "Decoder",
    "Embedding",
    "Layer",
    "LayerConvention",
    "LmHead",
    "Place",
    "annotation_text",
    "check_annotation",
    "configured_layer_count",
    "describe_output",
    "find_layers",
    "parse_annotation",
    "read_decoder",
    "read_embedding",
    "read_lm_head",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "annotation": ("annotation_text", "check_annotation", "configured_layer_count", "parse_annotation"),
        "embedding": ("read_embedding",),
        "layers": ("find_layers",),
        "lm_head": ("read_lm_head",),
        "places": ("Place", "describe_output"),
        "read": ("read_decoder",),
        "types": ("Decoder", "Embedding", "Layer", "LayerConvention", "LmHead"),
    },
)
