"""Pairs with one thing wrong, and pairs whose acceptance is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.checks.doctor import Diagnosis, RunOptions
from ovgraft.graft import Graft, Package
from tests import models
from tests.drafts.checkpoints import BF16, write_checkpoint

Edit = Callable[[ov.Model], None]
CONFIG: dict[str, Any] = {"model_type": "qwen3", "vocab_size": 64, "dflash_config": {"block_size": 8}}


def pair(
    folder: Path,
    *,
    target: ov.Model | None = None,
    draft: ov.Model | None = None,
    config: dict[str, Any] | None = None,
    others: dict[str, ov.Model] | None = None,
) -> Graft:
    """A sound pair on disk, or one with these models in it."""
    models.write_package(target or models.tiny_decoder(layers=4, annotated=True), folder / "target", others=None)
    model = draft or models.tiny_dflash_draft(n=3, target_layer_ids=(0, 1, 2))
    models.write_package(model, folder / "draft", config=CONFIG if config is None else config, others=others)
    return opened(folder)


def opened(folder: Path) -> Graft:
    return Graft(Package(folder / "target"), Package(folder / "draft"))


def edited(model: ov.Model, edit: Edit) -> ov.Model:
    edit(model)
    model.validate_nodes_and_infer_types()
    return model


def statuses(found: Diagnosis) -> dict[str, str]:
    """What does not pass."""
    return {
        check.id: check.answer.status for check in found.checks if check.answer.status not in ("pass", "not-applicable")
    }


def only(found: Diagnosis, name: str, status: str) -> str:
    """Text and advice of the one check that stands out; all others pass or were not asked."""
    assert {key: value for key, value in statuses(found).items() if value != "not-checked"} == {name: status}
    answer = found[name].answer
    assert answer.advice
    return answer.text


def set_text(model: ov.Model, *path: str, value: str) -> ov.Model:
    model.set_rt_info(value, list(path))
    return model


COUNTING, WIDTH = 64, 128
"""Tokens and width of the target that counts: its embedding has one column a token, the others are free."""


def counting_target(layers: int = 3) -> ov.Model:
    """A target that says t + 1 after t: its output layer is its embedding moved by one.

    Layer 1 writes noise into the free columns, which the output layer does not read; the others add nothing.
    """
    one = np.eye(COUNTING, WIDTH, dtype=np.float32)
    noise = np.zeros((WIDTH, 2 * WIDTH), np.float32)
    noise[COUNTING:] = np.random.default_rng(0).standard_normal((WIDTH - COUNTING, 2 * WIDTH))
    given: dict[str, NDArray[np.float32]] = {
        "self.model.embed_tokens.weight": one,
        "self.lm_head.weight": np.roll(one, 1, axis=0),
        "self.model.norm.weight": np.ones(WIDTH, np.float32),
    }
    for layer in range(layers):
        given[f"self.model.layers.{layer}.self_attn.o_proj.weight"] = np.zeros((WIDTH, WIDTH), np.float32)
        given[f"self.model.layers.{layer}.mlp.down_proj.weight"] = noise if layer == 1 else 0 * noise
    return models.tiny_decoder(layers, WIDTH, COUNTING, given=given, annotated=True)


def echo_checkpoint(folder: Path, tensors: dict[str, NDArray[Any]] | None = None, **keys: Any) -> Path:
    """A DeepSpec checkpoint whose rows come out as they went in: the anchor's row gives the next token (offset 0).

    Its FC and its values read free columns only: nothing comes from layer 0, for which it is made, noise from others.
    """
    random = np.random.default_rng(0)

    def drawn(*shape: int) -> NDArray[Any]:
        return random.standard_normal(shape).astype(BF16)

    ones = np.ones(WIDTH, BF16)
    free = np.diag(np.arange(WIDTH) >= COUNTING).astype(np.float32)
    stored: dict[str, NDArray[Any]] = {
        "fc.weight": free.astype(BF16),
        "hidden_norm.weight": ones,
        "norm.weight": ones,
        "layers.0.input_layernorm.weight": ones,
        "layers.0.post_attention_layernorm.weight": ones,
        "layers.0.self_attn.q_proj.weight": drawn(32, WIDTH),
        "layers.0.self_attn.k_proj.weight": drawn(16, WIDTH),
        "layers.0.self_attn.v_proj.weight": (drawn(16, WIDTH).astype(np.float32) @ free).astype(BF16),
        "layers.0.self_attn.o_proj.weight": drawn(WIDTH, 32),
        "layers.0.self_attn.q_norm.weight": np.ones(16, BF16),
        "layers.0.self_attn.k_norm.weight": np.ones(16, BF16),
        "layers.0.mlp.gate_proj.weight": drawn(40, WIDTH),
        "layers.0.mlp.up_proj.weight": drawn(40, WIDTH),
        "layers.0.mlp.down_proj.weight": np.zeros((WIDTH, 40), BF16),
        "embed_tokens.weight": np.eye(COUNTING, WIDTH).astype(BF16),
        "lm_head.weight": np.roll(np.eye(COUNTING, WIDTH), 1, axis=0).astype(BF16),
    }
    config = {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "hidden_size": WIDTH,
        "intermediate_size": 40,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "vocab_size": COUNTING,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": ["full_attention"],
        "sliding_window": None,
        "use_sliding_window": False,
        "target_layer_ids": [0],
        "mask_token_id": 60,
        "block_size": 4,
        "num_anchors": 64,
        "num_target_layers": 3,
        "markov_rank": 0,
        "markov_head_type": "vanilla",
        "enable_confidence_head": False,
        "confidence_head_with_markov": False,
        **keys,
    }
    return write_checkpoint(folder, config, stored | (tensors or {}))


RUN = RunOptions(prompts=((3, 4, 5, 6), (20, 21, 22)), new_tokens=12)
