"""Canonical tensor names of a draft and the shapes its spec implies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgraft.drafts.spec import Confidence, DraftSpec, HeadType
from ovgraft.drafts.weight_source import BFLOAT16, WeightSource
from ovgraft.errors import CheckpointError, Reason

EMBEDDING = "embed_tokens.weight"
LM_HEAD = "lm_head.weight"
D2T = "d2t"
T2D = "t2d"
MASK_EMBEDDING = "mask_embedding"
FC = "fc.weight"
MARKOV_W1 = "markov_head.markov_w1.weight"
MARKOV_W2 = "markov_head.markov_w2.weight"
GATE_WEIGHT = "markov_head.gate_proj.weight"
GATE_BIAS = "markov_head.gate_proj.bias"
JOINT_WEIGHT = "markov_head.joint_proj.weight"
JOINT_BIAS = "markov_head.joint_proj.bias"
CONFIDENCE_WEIGHT = "confidence_head.proj.weight"
CONFIDENCE_BIAS = "confidence_head.proj.bias"
PREDECESSOR_CODEBOOK = "candidate_selector.predecessor_codebook"
SUCCESSOR_CODEBOOK = "candidate_selector.successor_codebook"
HIDDEN_PROJECTION = "candidate_selector.hidden_projection.weight"

QUANTIZED = "quantized checkpoints are not read; use the one they were made from"

_FLOATS = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)
_TYPES: dict[str, tuple[np.dtype[Any], ...]] = {
    D2T: (np.dtype(np.int64), np.dtype(np.int32)),
    T2D: (np.dtype(np.bool_),),
}


@dataclass(frozen=True, slots=True)
class Expected:
    """What a tensor must be.

    Attributes:
        shape: Dimensions.
        why: The same in config words.
        optional: May be absent.
    """

    shape: tuple[int, ...]
    why: str
    optional: bool = False


def expected_tensors(spec: DraftSpec) -> dict[str, Expected]:
    """Every tensor a draft of this spec has, by canonical name."""
    backbone, vocabulary = spec.backbone, spec.vocabulary
    width, count = backbone.hidden_size, len(spec.layer_ids)
    expected = {
        FC: Expected(
            (width, count * backbone.target_hidden_size), f"hidden_size, {count} target layers x target_hidden_size"
        ),
        "hidden_norm.weight": Expected((width,), "hidden_size"),
        "norm.weight": Expected((width,), "hidden_size"),
    }
    layer = _layer(spec)
    for index in range(backbone.num_hidden_layers):
        expected.update({f"layers.{index}.{name}": tensor for name, tensor in layer.items()})
    if spec.own_embedding:
        expected[EMBEDDING] = Expected((vocabulary.size, width), "vocab_size, hidden_size")
    if spec.own_lm_head:
        expected[LM_HEAD] = Expected((vocabulary.lm_head_rows, width), "draft vocabulary, hidden_size")
    if spec.own_mask_embedding:
        expected[MASK_EMBEDDING] = Expected((width,), "hidden_size")
    mapped = vocabulary.lm_head_rows
    expected[D2T] = Expected((mapped,), "draft_vocab_size", optional=not vocabulary.pruned)
    expected[T2D] = Expected((vocabulary.size,), "vocab_size", optional=True)
    expected.update(_head(spec))
    return expected


def check_tensors(
    spec: DraftSpec, weights: WeightSource, names: Mapping[str, str], file_name: Callable[[str], str]
) -> None:
    """Compare the tensors of a checkpoint with what its spec implies.

    Args:
        spec: The spec.
        weights: Tensors under canonical names.
        names: Canonical name -> name in the file, for messages.
        file_name: Canonical name of a tensor that is not there -> the name it would have.

    Raises:
        CheckpointError: A tensor is missing, unknown, or of another shape or type; ``reasons`` lists them all.
    """
    expected = expected_tensors(spec)
    missing = [name for name, tensor in expected.items() if name not in weights and not tensor.optional]
    unknown = [name for name in weights if name not in expected]
    problems = [
        CheckpointError(f"tensor {name} is missing", key=name, file=weights.path) for name in map(file_name, missing)
    ]
    problems += [
        CheckpointError(
            f"tensor {names[name]} is not understood",
            key=names[name],
            file=weights.info(name).file,
            found=f"{weights.info(name).dtype} {list(weights.info(name).shape)}",
        )
        for name in unknown
    ]
    for name, tensor in expected.items():
        if name not in weights:
            continue
        info = weights.info(name)
        if info.shape != tensor.shape:
            problems.append(
                CheckpointError(
                    f"tensor {names[name]} does not fit the config",
                    key=names[name],
                    file=info.file,
                    expected=f"{list(tensor.shape)} ({tensor.why})",
                    found=list(info.shape),
                )
            )
        allowed = _TYPES.get(name, _FLOATS)
        if info.dtype not in allowed:
            problems.append(
                CheckpointError(
                    f"tensor {names[name]} has a type that is not read",
                    key=names[name],
                    file=info.file,
                    expected=" or ".join(str(dtype) for dtype in allowed),
                    found=info.dtype,
                    hint=None if name in _TYPES or info.dtype == np.float64 else QUANTIZED,
                )
            )
    if problems:
        first = problems[0]
        first.reasons = tuple(Reason("tensor", str(problem)) for problem in problems)
        raise first


def _layer(spec: DraftSpec) -> dict[str, Expected]:
    backbone = spec.backbone
    width, inner = backbone.hidden_size, backbone.intermediate_size
    queries = backbone.num_attention_heads * backbone.head_dim
    keys = backbone.num_key_value_heads * backbone.head_dim
    query_words, key_words = "num_attention_heads x head_dim", "num_key_value_heads x head_dim"
    norms = ["input_layernorm", "post_attention_layernorm"]
    if backbone.architecture == "gemma4":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    layer = {f"{norm}.weight": Expected((width,), "hidden_size") for norm in norms}
    if backbone.architecture == "gemma4":
        layer["layer_scalar"] = Expected((1,), "one number per layer")
    projections = {
        "q_proj": ((queries, width), f"{query_words}, hidden_size"),
        "k_proj": ((keys, width), f"{key_words}, hidden_size"),
        "v_proj": ((keys, width), f"{key_words}, hidden_size"),
        "o_proj": ((width, queries), f"hidden_size, {query_words}"),
    }
    if backbone.shared_key_value:
        del projections["v_proj"]
    for name, (shape, words) in projections.items():
        layer[f"self_attn.{name}.weight"] = Expected(shape, words)
        if backbone.attention_bias:
            layer[f"self_attn.{name}.bias"] = Expected(shape[:1], f"attention_bias: {words.partition(',')[0]}")
    if backbone.qk_norm:
        layer["self_attn.q_norm.weight"] = layer["self_attn.k_norm.weight"] = Expected((backbone.head_dim,), "head_dim")
    layer["mlp.gate_proj.weight"] = layer["mlp.up_proj.weight"] = Expected(
        (inner, width), "intermediate_size, hidden_size"
    )
    layer["mlp.down_proj.weight"] = Expected((width, inner), "hidden_size, intermediate_size")
    if backbone.convolution is not None:
        taps, groups = backbone.convolution.kernel_size, width // backbone.convolution.group_size
        for name in ("attention_conv", "mlp_conv"):
            layer[f"{name}.base_kernel"] = Expected((2, taps, width), "2, conv_kernel_size, hidden_size")
            layer[f"{name}.kernel_projection.weight"] = Expected(
                (2 * taps * groups, width), "2 x conv_kernel_size x hidden_size / conv_group_size, hidden_size"
            )
    return layer


def _head(spec: DraftSpec) -> dict[str, Expected]:
    width, rank = spec.backbone.hidden_size, spec.head.rank
    tokens, rows = spec.vocabulary.size, spec.vocabulary.lm_head_rows
    expected: dict[str, Expected] = {}
    if spec.head.type is HeadType.DFLASH2:
        expected[PREDECESSOR_CODEBOOK] = Expected((tokens, rank), "vocab_size, selector_rank")
        expected[SUCCESSOR_CODEBOOK] = Expected((rows, rank), "draft vocabulary, selector_rank")
        expected[HIDDEN_PROJECTION] = Expected((rank, width), "selector_rank, hidden_size")
    elif spec.head.type is not HeadType.NONE:
        expected[MARKOV_W1] = Expected((tokens, rank), "vocab_size, markov_rank")
        expected[MARKOV_W2] = Expected((rows, rank), "draft vocabulary, markov_rank")
    if spec.head.type is HeadType.GATED:
        expected[GATE_WEIGHT] = Expected((rank, width + rank), "markov_rank, hidden_size + markov_rank")
        expected[GATE_BIAS] = Expected((rank,), "markov_rank")
    elif spec.head.type is HeadType.RNN:
        expected[JOINT_WEIGHT] = Expected(
            (3 * rank, 2 * rank + width), "3 x markov_rank, 2 x markov_rank + hidden_size"
        )
        expected[JOINT_BIAS] = Expected((3 * rank,), "3 x markov_rank")
    if spec.confidence is not Confidence.NONE:
        with_markov = spec.confidence is Confidence.MARKOV
        words = "1, hidden_size + markov_rank" if with_markov else "1, hidden_size"
        expected[CONFIDENCE_WEIGHT] = Expected((1, width + (rank if with_markov else 0)), words)
        expected[CONFIDENCE_BIAS] = Expected((1,), "1")
    return expected
