"""A draft checkpoint, by its config and the headers of its tensors."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from ovgraft import drafts
from ovgraft.drafts.building.draft import row_attention
from ovgraft.drafts.tensors import D2T, EMBEDDING, FC, LM_HEAD, MASK_EMBEDDING, T2D
from ovgraft.errors import ModelFileError
from ovgraft.inspection.formats import by_format
from ovgraft.inspection.tree import CheckpointInfo, FactInfo
from ovgraft.inspection.tree_layers import CheckpointLayer, FormatInfo, PartInfo

_LAYER = re.compile(r"layers\.(\d+)\.")
_PARTS = {
    FC.partition(".")[0]: "fc",
    EMBEDDING.partition(".")[0]: "embedding",
    MASK_EMBEDDING: "embedding",
    LM_HEAD.partition(".")[0]: "lm_head",
    "markov_head": "markov head",
    "candidate_selector": "candidate selector",
    "confidence_head": "confidence head",
    D2T: "vocabulary map",
    T2D: "vocabulary map",
}
"""First word of a canonical tensor name -> part; norms outside the layers are ``shared``."""
_SHORT_NAMES = {"bool": "boolean", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"}


def collect_checkpoint(folder: Path) -> CheckpointInfo:
    """Read a checkpoint; of its tensors no more than :func:`ovgraft.drafts.read_checkpoint` does.

    Raises:
        ModelFileError: The folder holds none.
        CheckpointError: One that is not understood.
    """
    if not drafts.is_checkpoint(folder):
        raise ModelFileError("neither an OpenVINO IR nor a draft checkpoint in this folder", file=folder)
    checkpoint = drafts.read_checkpoint(folder)
    spec, weights = checkpoint.spec, checkpoint.weights
    sizes = {name: (_element_type(weights.info(name).dtype), weights.info(name).nbytes) for name in weights}
    parts: dict[tuple[str, int | None], list[tuple[str, int]]] = defaultdict(list)
    for name, size in sizes.items():
        parts[_part(name)].append(size)
    found = [_part_info(*part, by_format(tensors)) for part, tensors in parts.items()]
    return CheckpointInfo(
        facts=tuple(FactInfo(name, value, source) for name, value, source in spec.rows()),
        warnings=tuple(map(str, spec.warnings)),
        spec=spec.to_dict(),
        layers=_layers(spec, {part.layer: part for part in found if part.layer is not None}),
        weights=by_format(sizes.values()),
        parts=tuple(sorted(found, key=lambda part: (-part.bytes, part.part, part.layer or 0))),
    )


def _layers(spec: drafts.DraftSpec, parts: dict[int, PartInfo]) -> tuple[CheckpointLayer, ...]:
    backbone = spec.backbone
    return tuple(
        CheckpointLayer(
            index=i,
            kind="attention" if backbone.convolution is None else "attention+convolution",
            heads=backbone.num_attention_heads,
            kv_heads=backbone.num_key_value_heads,
            head_size=backbone.head_dim,
            value_head_size=backbone.head_dim,
            window=sees.window or None,
            bidirectional=sees.bidirectional,
            weights=parts[i].formats,
            bytes=parts[i].bytes,
        )
        for i, sees in enumerate(row_attention(backbone))
    )


def _part(tensor: str) -> tuple[str, int | None]:
    if match := _LAYER.match(tensor):
        return "layer", int(match[1])
    return _PARTS.get(tensor.partition(".")[0], "shared"), None


def _part_info(part: str, layer: int | None, formats: tuple[FormatInfo, ...]) -> PartInfo:
    size, count = sum(entry.bytes for entry in formats), sum(entry.constants for entry in formats)
    return PartInfo(part, layer, formats, size, count)


def _element_type(dtype: np.dtype[Any]) -> str:
    """OpenVINO's name of a numpy type."""
    return _SHORT_NAMES.get(dtype.name) or dtype.name.replace("uint", "u").replace("int", "i").replace("float", "f")
