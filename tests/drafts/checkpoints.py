"""Tiny draft checkpoints of every published format, and writers for every file layout they come in."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

Config = dict[str, Any]
Tensors = dict[str, NDArray[Any]]

# No matrix is square: a transposed one has another shape.
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, LAYERS = 16, 3, 1, 8, 40, 2
VOCAB, DRAFT_VOCAB, RANK = 64, 24, 4
TARGET_LAYERS, LAYER_IDS = 6, (1, 4)
MASK, BLOCK = 3, 8

BF16 = ml_dtypes.bfloat16
_SAFETENSORS_TYPES = {
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(BF16): "BF16",
    np.dtype(np.float64): "F64",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(np.int64): "I64",
    np.dtype(np.int32): "I32",
    np.dtype(np.int8): "I8",
    np.dtype(np.bool_): "BOOL",
}


def _transformer() -> Config:
    return {
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": ["full_attention"] * LAYERS,
        "sliding_window": None,
        "use_sliding_window": False,
    }


class _Weights:
    """Draws tensors."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def __call__(self, *shape: int) -> NDArray[Any]:
        return self._generator.standard_normal(shape).astype(BF16)

    def backbone(self) -> Tensors:
        tensors = {
            "fc.weight": self(HIDDEN, len(LAYER_IDS) * HIDDEN),
            "hidden_norm.weight": self(HIDDEN),
            "norm.weight": self(HIDDEN),
        }
        shapes = {
            "input_layernorm.weight": (HIDDEN,),
            "post_attention_layernorm.weight": (HIDDEN,),
            "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            "self_attn.q_norm.weight": (HEAD_DIM,),
            "self_attn.k_norm.weight": (HEAD_DIM,),
            "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
        for layer in range(LAYERS):
            tensors.update({f"layers.{layer}.{name}": self(*shape) for name, shape in shapes.items()})
        return tensors

    def head(self, kind: str = "vanilla", rows: int = VOCAB) -> Tensors:
        tensors = {
            "markov_head.markov_w1.weight": self(VOCAB, RANK),
            "markov_head.markov_w2.weight": self(rows, RANK),
            "confidence_head.proj.weight": self(1, HIDDEN + RANK),
            "confidence_head.proj.bias": self(1),
        }
        if kind == "gated":
            tensors["markov_head.gate_proj.weight"] = self(RANK, HIDDEN + RANK)
            tensors["markov_head.gate_proj.bias"] = self(RANK)
        if kind == "rnn":
            tensors["markov_head.joint_proj.weight"] = self(3 * RANK, 2 * RANK + HIDDEN)
            tensors["markov_head.joint_proj.bias"] = self(3 * RANK)
        return tensors

    def tables(self, rows: int = VOCAB) -> Tensors:
        return {"embed_tokens.weight": self(VOCAB, HIDDEN), "lm_head.weight": self(rows, HIDDEN)}

    def token_map(self) -> Tensors:
        tokens = self._generator.permutation(VOCAB)[:DRAFT_VOCAB]
        marked = np.zeros(VOCAB, np.bool_)
        marked[tokens] = True
        return {"d2t": (tokens - np.arange(DRAFT_VOCAB)).astype(np.int64), "t2d": marked}


def _head_keys(kind: str = "vanilla") -> Config:
    return {
        "markov_rank": RANK,
        "markov_head_type": kind,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


def zlab_dflash() -> tuple[Config, Tensors]:
    draft = {"mask_token_id": MASK, "target_layer_ids": list(LAYER_IDS)}
    top = {"architectures": ["DFlashDraftModel"], "num_target_layers": TARGET_LAYERS, "block_size": BLOCK}
    return _transformer() | top | {"dflash_config": draft}, _Weights(1).backbone()


def zlab_dflash2() -> tuple[Config, Tensors]:
    draft = {
        "conv_kernel_size": 2,
        "conv_group_size": 2,
        "selector_rank": RANK,
        "selector_top_k": 5,
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "target_layer_ids": list(LAYER_IDS),
    }
    sliding = {"layer_types": ["sliding_attention"] * LAYERS, "sliding_window": 32, "use_sliding_window": True}
    config = _transformer() | sliding | {"num_target_layers": TARGET_LAYERS, "dflash_config": draft}
    weights = _Weights(2)
    tensors = weights.backbone()
    for layer in range(LAYERS):
        for name in ("attention_conv", "mlp_conv"):
            tensors[f"layers.{layer}.{name}.base_kernel"] = weights(2, 2, HIDDEN)
            tensors[f"layers.{layer}.{name}.kernel_projection.weight"] = weights(2 * 2 * HIDDEN // 2, HIDDEN)
    tensors["candidate_selector.predecessor_codebook"] = weights(VOCAB, RANK)
    tensors["candidate_selector.successor_codebook"] = weights(VOCAB, RANK)
    tensors["candidate_selector.hidden_projection.weight"] = weights(RANK, HIDDEN)
    return config | {"architectures": ["DFlash2DraftModel"]}, tensors


def _deepspec(kind: str, seed: int) -> tuple[Config, Tensors]:
    config = _transformer() | {
        "architectures": ["Qwen3DSparkModel"],
        "target_layer_ids": list(LAYER_IDS),
        "mask_token_id": MASK,
        "block_size": BLOCK,
        "num_anchors": 64,
        "num_target_layers": TARGET_LAYERS,
        **_head_keys(kind),
    }
    weights = _Weights(seed)
    return config, weights.backbone() | weights.tables() | weights.head(kind)


def deepspec_vanilla() -> tuple[Config, Tensors]:
    return _deepspec("vanilla", 3)


def deepspec_gated() -> tuple[Config, Tensors]:
    return _deepspec("gated", 4)


def deepspec_rnn() -> tuple[Config, Tensors]:
    return _deepspec("rnn", 5)


def deepspec_headless() -> tuple[Config, Tensors]:
    config, tensors = _deepspec("vanilla", 6)
    config |= {"markov_rank": 0, "enable_confidence_head": False}
    return config, {name: value for name, value in tensors.items() if "_head." not in name or name.startswith("lm_")}


def minicpm_pruned() -> tuple[Config, Tensors]:
    config, _ = _deepspec("vanilla", 7)
    weights = _Weights(7)
    tensors = weights.backbone() | weights.tables(DRAFT_VOCAB) | weights.head("vanilla", DRAFT_VOCAB)
    return config | {"draft_vocab_size": DRAFT_VOCAB}, tensors | {"d2t": weights.token_map()["d2t"]}


def modelopt() -> tuple[Config, Tensors]:
    config, _ = zlab_dflash()
    config["dflash_config"] |= {"projector_type": "dspark", "shift_label": True, "causal": False, **_head_keys("gated")}
    weights = _Weights(8)
    head = {
        name.replace("markov_head.", "").replace("confidence_head.proj", "confidence_proj"): value
        for name, value in weights.head("gated").items()
    }
    return config, weights.backbone() | head


def specforge() -> tuple[Config, Tensors]:
    config, _ = zlab_dflash()
    config |= {"architectures": ["DSparkDraftModel"]}
    config["dflash_config"] |= {"projector_type": "dspark", "attention_mode": "gqa", **_head_keys()}
    weights = _Weights(9)
    return config, weights.backbone() | weights.head()


def _speculators(family: str) -> Config:
    # A diff against transformers' Qwen3Config: rms_norm_eps, hidden_act, attention_bias are its defaults.
    transformer = _transformer()
    for name in ("rms_norm_eps", "hidden_act", "attention_bias", "rope_parameters", "sliding_window"):
        del transformer[name]
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": family,
        "speculators_version": "0.5.0",
        "draft_vocab_size": DRAFT_VOCAB,
        "block_size": BLOCK,
        "target_hidden_size": HIDDEN,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in LAYER_IDS],
        "mask_token_id": MASK,
        "sliding_window_non_causal": False,
        "sample_from_anchor": family == "dspark",
        "transformer_layer_config": transformer | {"rope_theta": 10000.0},
    }


def speculators_dflash() -> tuple[Config, Tensors]:
    weights = _Weights(10)
    return _speculators("dflash"), weights.backbone() | weights.tables(DRAFT_VOCAB) | weights.token_map()


def speculators_dspark() -> tuple[Config, Tensors]:
    weights = _Weights(11)
    tensors = weights.backbone() | weights.tables(DRAFT_VOCAB) | weights.token_map()
    return _speculators("dspark") | _head_keys(), tensors | weights.head("vanilla", DRAFT_VOCAB)


def speculators_dflash2() -> tuple[Config, Tensors]:
    _, tensors = zlab_dflash2()
    keys = {"conv_kernel_size": 2, "conv_group_size": 2, "selector_rank": RANK, "selector_top_k": 5}
    config = _speculators("dflash2") | keys | {"draft_vocab_size": VOCAB, "sliding_window_non_causal": True}
    sliding = {"layer_types": ["sliding_attention"] * LAYERS, "sliding_window": 32, "use_sliding_window": True}
    config["transformer_layer_config"] |= sliding
    return config, tensors


def deepspec_gemma4() -> tuple[Config, Tensors]:
    """DeepSpec's Gemma-4 layers: four norms, a scalar per layer, values that are the keys."""
    config, tensors = _deepspec("vanilla", 12)
    for name in ("hidden_act", "rope_parameters", "head_dim"):
        del config[name]
    config |= {
        "architectures": ["Gemma4DSparkModel"],
        "model_type": "gemma4_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "global_head_dim": HEAD_DIM,
        "head_dim": 4,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": KV_HEADS,
        "num_key_value_heads": 2,
        "enable_moe_block": False,
        "hidden_size_per_layer_input": 0,
        "final_logit_softcapping": 30.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    }
    weights = _Weights(13)
    for layer in range(LAYERS):
        del tensors[f"layers.{layer}.self_attn.v_proj.weight"]
        tensors[f"layers.{layer}.pre_feedforward_layernorm.weight"] = weights(HIDDEN)
        tensors[f"layers.{layer}.post_feedforward_layernorm.weight"] = weights(HIDDEN)
        tensors[f"layers.{layer}.layer_scalar"] = weights(1)
    return config, tensors


BUILDERS: dict[str, Callable[[], tuple[Config, Tensors]]] = {
    builder.__name__: builder
    for builder in (
        zlab_dflash,
        zlab_dflash2,
        deepspec_vanilla,
        deepspec_gated,
        deepspec_rnn,
        deepspec_headless,
        deepspec_gemma4,
        minicpm_pruned,
        modelopt,
        specforge,
        speculators_dflash,
        speculators_dspark,
        speculators_dflash2,
    )
}
"""One per format and head."""


def write_checkpoint(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Path:
    """config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def write_safetensors(file: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """One safetensors file."""
    header, end = {}, 0
    for name, value in tensors.items():
        kind = _SAFETENSORS_TYPES[value.dtype]
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [end, end + value.nbytes]}
        end += value.nbytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(value.tobytes() for value in tensors.values()))


def write_shards(folder: Path, tensors: Mapping[str, NDArray[Any]], count: int = 3) -> Path:
    """Shards and their index; returns the index."""
    names = list(tensors)
    weight_map = {}
    for shard in range(count):
        held = names[shard::count]
        file = f"model-{shard + 1:05}-of-{count:05}.safetensors"
        write_safetensors(folder / file, {name: tensors[name] for name in held})
        weight_map.update(dict.fromkeys(held, file))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


def write_npz(file: Path, tensors: Mapping[str, NDArray[Any]], *, compressed: bool = False) -> None:
    """A numpy archive."""
    save: Any = np.savez_compressed if compressed else np.savez
    save(file, **tensors)


def write_onnx(file: Path, tensors: Mapping[str, NDArray[Any]], *, external: bool = False) -> None:
    """A model that holds only initializers."""
    initializers = [onnx.numpy_helper.from_array(value, name) for name, value in tensors.items()]
    graph = onnx.helper.make_graph([], "weights", [], [], initializers)
    model = onnx.helper.make_model(graph)
    onnx.save(
        model,
        file,
        save_as_external_data=external,
        location=f"{file.name}.data" if external else None,
        size_threshold=0,
    )
