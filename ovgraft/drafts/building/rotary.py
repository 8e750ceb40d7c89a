"""Rotary positions: the frequencies of every rope type, and the graph that turns positions into cosines and sines.

Formulas: transformers ``modeling_rope_utils``; each type is named there as here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.drafts.building.graph import Scope, ints
from ovgraft.drafts.spec import Backbone
from ovgraft.errors import PreconditionError
from ovgraft.ir import opset

Frequencies = NDArray[np.float64]

LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Types whose frequencies change with the longest position of a call."""


@dataclass(frozen=True)
class Rotary:
    """Cosines and sines of one call.

    Attributes:
        cos: f32 ``[B, rows, head_dim]``.
        sin: The same shape.
    """

    cos: ov.Output
    sin: ov.Output


def frequencies(backbone: Backbone) -> tuple[Frequencies, float]:
    """Inverse frequencies ``[head_dim / 2]`` and the factor on cosines and sines.

    For a length-dependent type these hold up to the original length.
    """
    rope, dim = backbone.rope, backbone.head_dim
    values = dict(rope.parameters)
    plain = rope.theta ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    match rope.type:
        case "default" | "dynamic":
            return plain, 1.0
        case "linear":
            return plain / values["factor"], 1.0
        case "llama3":
            return _llama3(plain, values), 1.0
        case "yarn":
            return _yarn(plain, values, backbone)
        case "longrope":
            return plain / np.array(values["short_factor"]), _longrope_attention(values, backbone)
        case "proportional":
            turning = int(values.get("partial_rotary_factor", 1.0) * dim // 2)
            plain[turning:] = 0.0
            return plain / values.get("factor", 1.0), 1.0
    raise PreconditionError(f"rope type '{rope.type}' is not understood")


def rotary(scope: Scope, positions: ov.Output, backbone: Backbone) -> Rotary:
    """Cosines and sines for ``position_ids``.

    Args:
        scope: Names the nodes.
        positions: i64 ``[B, rows]``.
        backbone: Rope type and head width.
    """
    inverse, factor = frequencies(backbone)
    column = _column(scope, inverse)
    if backbone.rope.type in LENGTH_DEPENDENT:
        column = _by_length(scope, positions, backbone, column)
    row = opset.convert(opset.unsqueeze(positions, ints(1)), "f32")
    angles = opset.transpose(opset.matmul(column, row, False, False), ints(0, 2, 1))
    both = opset.concat([angles, angles], -1)
    outputs = []
    for name, node in (("cos", opset.cos(both)), ("sin", opset.sin(both))):
        scaled = node if factor == 1.0 else opset.multiply(node, scope.number(factor))
        outputs.append(scope.name(scaled, f"rotary_emb/{name}"))
    return Rotary(*outputs)


def rotate(heads: ov.Output, cos: ov.Output, sin: ov.Output) -> ov.Output:
    """``x * cos + rotate_half(x) * sin``.

    Written as exporters write it, which the CPU plugin fuses into one op.

    Args:
        heads: f32 ``[B, heads, rows, size]``.
        cos: f32 ``[B, 1, rows, size]``.
        sin: The same shape.
    """
    half = heads.get_partial_shape()[3].get_length() // 2
    end = ints(np.iinfo(np.int64).max)
    upper = opset.slice(heads, ints(half), end, ints(1), ints(3))
    lower = opset.slice(heads, ints(0), ints(half), ints(1), ints(3))
    turned = opset.concat([opset.multiply(upper, opset.constant(np.float32(-1))), lower], -1)
    return opset.add(opset.multiply(heads, cos), opset.multiply(turned, sin)).output(0)


def _column(scope: Scope, inverse: Frequencies) -> ov.Output:
    return scope.constant(inverse.astype(np.float32).reshape(1, -1, 1), "rotary_emb/inv_freq")


def _llama3(plain: Frequencies, values: Mapping[str, Any]) -> Frequencies:
    original = values["original_max_position_embeddings"]
    low, high = values["low_freq_factor"], values["high_freq_factor"]
    wavelength = 2 * math.pi / plain
    smooth = (original / wavelength - low) / (high - low)
    mixed = (1 - smooth) * plain / values["factor"] + smooth * plain
    slow = np.where(wavelength > original / low, plain / values["factor"], plain)
    medium = (wavelength >= original / high) & (wavelength <= original / low)
    return np.where(medium, mixed, slow)


def _yarn(plain: Frequencies, values: Mapping[str, Any], backbone: Backbone) -> tuple[Frequencies, float]:
    factor, dim = values["factor"], backbone.head_dim
    original = values.get("original_max_position_embeddings") or _longest(backbone)
    attention = values.get("attention_factor")
    if attention is None:
        attention = _yarn_attention(factor, values.get("mscale"), values.get("mscale_all_dim"))

    def dimension(rotations: float) -> float:
        return (dim * math.log(original / (rotations * 2 * math.pi))) / (2 * math.log(backbone.rope.theta))

    low, high = dimension(values.get("beta_fast") or 32), dimension(values.get("beta_slow") or 1)
    if values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low if high != low else 0.001
    interpolated = np.clip((np.arange(dim // 2) - low) / span, 0, 1)
    return plain / factor * interpolated + plain * (1 - interpolated), float(attention)


def _yarn_attention(factor: float, mscale: float | None, all_dim: float | None) -> float:
    def scale(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    return scale(mscale) / scale(all_dim) if mscale and all_dim else scale(1)


def _longrope_attention(values: Mapping[str, Any], backbone: Backbone) -> float:
    if values.get("attention_factor") is not None:
        return float(values["attention_factor"])
    original = _original(values, backbone)
    factor = values.get("factor") or _longest(backbone) / original
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


def _longest(backbone: Backbone) -> int:
    longest = backbone.max_position_embeddings
    if longest is None or longest < 2:
        raise PreconditionError(
            f"rope type '{backbone.rope.type}' needs the length the draft was made for",
            expected="max_position_embeddings in config.json",
        )
    return longest


def _original(values: Mapping[str, Any], backbone: Backbone) -> int:
    return int(values.get("original_max_position_embeddings") or _longest(backbone))


def _by_length(scope: Scope, positions: ov.Output, backbone: Backbone, column: ov.Output) -> ov.Output:
    """The frequencies of a call whose longest position lies beyond the original length."""
    values = dict(backbone.rope.parameters)
    # transformers' dynamic type has always ignored original_max_position_embeddings
    original = _original(values, backbone) if backbone.rope.type == "longrope" else _longest(backbone)
    length = opset.add(opset.reduce_max(positions, ints(0, 1), False), opset.constant(np.int64(1)))
    longer = opset.greater(length, opset.constant(np.int64(original)))
    if backbone.rope.type == "longrope":
        inverse = frequencies(backbone)[0] * np.array(values["short_factor"]) / np.array(values["long_factor"])
        other = scope.constant(inverse.astype(np.float32).reshape(1, -1, 1), "rotary_emb/inv_freq_long")
    else:
        other = _dynamic(scope, opset.convert(length, "f32"), backbone, values["factor"], original)
    return opset.select(longer, other, column).output(0)


def _dynamic(scope: Scope, length: ov.Node, backbone: Backbone, factor: float, original: int) -> ov.Output:
    """``base' = base * (factor * length / original - (factor - 1)) ** (d / (d - 2))``."""
    dim = backbone.head_dim
    grown = opset.subtract(opset.multiply(length, scope.number(factor / original)), scope.number(factor - 1))
    base = opset.multiply(opset.power(grown, scope.number(dim / (dim - 2))), scope.number(backbone.rope.theta))
    exponents = (-np.arange(0, dim, 2, dtype=np.float32) / dim).reshape(1, -1, 1)
    return opset.power(base, scope.constant(exponents, "rotary_emb/exponents")).output(0)
