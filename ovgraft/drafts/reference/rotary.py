"""Rotary frequencies in numpy at f64, dimension by dimension, from transformers' ``modeling_rope_utils``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovgraft.drafts.spec import Backbone

Array = NDArray[Any]


def rotary_frequencies(backbone: Backbone, length: int = 1) -> tuple[Array, float]:
    """Angle per position of each pair of dimensions, and the factor on cosines and sines.

    Args:
        backbone: Rope type, base, head width.
        length: Longest position of the call plus one; only dynamic and longrope look at it.

    Returns:
        f64 ``[head_dim / 2]`` and the factor.
    """
    values, pairs = dict(backbone.rope.parameters), backbone.head_dim // 2
    angles = [_angle(backbone, values, pair, length) for pair in range(pairs)]
    return np.array(angles, np.float64), _factor(backbone, values)


def rotate_half(x: Array, positions: Array, angles: Array, factor: float) -> Array:
    """Turn dimension ``i`` with dimension ``i + size / 2`` by ``position * angles[i]``.

    Args:
        x: ``[rows, heads, size]``.
        positions: ``[rows]``.
        angles: ``[size / 2]``.
        factor: On cosines and sines.
    """
    turn = (positions[:, None] * angles)[:, None, :]
    cos, sin = factor * np.cos(turn), factor * np.sin(turn)
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _angle(backbone: Backbone, values: dict[str, Any], pair: int, length: int) -> float:
    base, dim = backbone.rope.theta, backbone.head_dim
    plain = float(base ** (-2 * pair / dim))
    match backbone.rope.type:
        case "default":
            return plain
        case "linear":
            return plain / float(values["factor"])
        case "dynamic":
            limit, factor = _positions(backbone), values["factor"]
            grown = base * (factor * max(length, limit) / limit - (factor - 1)) ** (dim / (dim - 2))
            return float(grown ** (-2 * pair / dim))
        case "longrope":
            name = "long_factor" if length > _original(backbone, values) else "short_factor"
            return plain / float(values[name][pair])
        case "proportional":
            turned = int(values.get("partial_rotary_factor", 1.0) * dim // 2)
            return plain / float(values.get("factor", 1.0)) if pair < turned else 0.0
        case "llama3":
            return _llama3(plain, values)
        case "yarn":
            return _yarn(plain, values, pair, backbone)
    raise ValueError(backbone.rope.type)


def _llama3(plain: float, values: dict[str, Any]) -> float:
    low, high, factor = (float(values[name]) for name in ("low_freq_factor", "high_freq_factor", "factor"))
    turns = float(values["original_max_position_embeddings"]) * plain / (2 * math.pi)  # over the original length
    if turns < low:
        return plain / factor
    if turns > high:
        return plain
    mix = (turns - low) / (high - low)
    return (1 - mix) * plain / factor + mix * plain


def _yarn(plain: float, values: dict[str, Any], pair: int, backbone: Backbone) -> float:
    dim, original = backbone.head_dim, _original(backbone, values)

    def pair_that_turns(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(backbone.rope.theta))

    low, high = pair_that_turns(values.get("beta_fast") or 32.0), pair_that_turns(values.get("beta_slow") or 1.0)
    if values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    slowed = min(max((pair - low) / (high - low), 0.0), 1.0)
    return plain * (1 - slowed) + plain / float(values["factor"]) * slowed


def _factor(backbone: Backbone, values: dict[str, Any]) -> float:
    if backbone.rope.type not in ("yarn", "longrope"):
        return 1.0
    if values.get("attention_factor") is not None:
        return float(values["attention_factor"])
    if backbone.rope.type == "longrope":
        original = _original(backbone, values)
        ratio = values.get("factor") or _positions(backbone) / original
        return math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
    ratio, by, all_dim = values["factor"], values.get("mscale"), values.get("mscale_all_dim")
    if ratio <= 1:
        return 1.0
    if by and all_dim:
        return float((0.1 * by * math.log(ratio) + 1) / (0.1 * all_dim * math.log(ratio) + 1))
    return 0.1 * math.log(ratio) + 1


def _positions(backbone: Backbone) -> int:
    assert backbone.max_position_embeddings is not None
    return backbone.max_position_embeddings


def _original(backbone: Backbone, values: dict[str, Any]) -> int:
    return int(values.get("original_max_position_embeddings") or _positions(backbone))
