"""Layer variants: biases, missing norms, mixed windows and causality, Gemma-4 layers, own tables and factors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovgraft import ir
from ovgraft.drafts.building.draft import SlidingInBlock, build_draft
from ovgraft.drafts.checkpoint import Checkpoint, read_checkpoint
from ovgraft.drafts.contract import Key
from tests.drafts import checkpoints
from tests.drafts.building import running
from tests.drafts.building.running import Numpy, PerRow, Sdpa, Step

FULL, SLIDING = "full_attention", "sliding_attention"
CALLS = [(21, 8), (1, 2), (3, 7)]


def check(checkpoint: Checkpoint, sliding_in_block: SlidingInBlock = "auto", *, paged: bool = True) -> None:
    """Both forms against the formulas over a few calls."""
    built = Sdpa(build_draft(checkpoint, sliding_in_block=sliding_in_block))
    packed = PerRow(checkpoint, running.paged(checkpoint, sliding_in_block)) if paged else None
    formulas, output = Numpy(checkpoint, sliding_in_block), running.output_name(checkpoint)
    for step in running.random_steps(checkpoint, CALLS):
        expected = formulas.step(step)
        rows = built.step(step)[output]
        offset = checkpoint.spec.candidate_position_offset
        np.testing.assert_allclose(rows, expected[offset:], rtol=0, atol=3e-5)
        if packed is not None:
            np.testing.assert_allclose(packed.step({"a": step})["a"][output], expected, rtol=0, atol=3e-5)


def random(*shape: int) -> Any:
    return np.random.default_rng(5).standard_normal(shape).astype(checkpoints.BF16)


def test_attention_bias(tmp_path: Path) -> None:
    def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
        config["attention_bias"] = True
        for name in [name for name in tensors if "_proj.weight" in name and "self_attn" in name]:
            tensors[name.replace("weight", "bias")] = random(len(tensors[name]))

    checkpoint = running.tiny(tmp_path, "zlab_dflash", edit)
    assert checkpoint.spec.backbone.attention_bias
    check(checkpoint)


def test_llama_layers_without_query_and_key_norms(tmp_path: Path) -> None:
    def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
        config["model_type"] = "llama"
        for name in [name for name in tensors if "q_norm" in name or "k_norm" in name]:
            del tensors[name]

    checkpoint = running.tiny(tmp_path, "zlab_dflash", edit)
    assert not checkpoint.spec.backbone.qk_norm
    check(checkpoint)


@pytest.mark.parametrize("width", [8, 24])
def test_a_draft_of_another_width_than_its_target(tmp_path: Path, width: int) -> None:
    def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
        config["target_hidden_size"] = width
        tensors["fc.weight"] = (random(checkpoints.HIDDEN, 2 * width) / 8).astype(checkpoints.BF16)

    checkpoint = running.tiny(tmp_path, "speculators_dflash", edit)
    assert (checkpoint.spec.backbone.hidden_size, checkpoint.spec.backbone.target_hidden_size) == (16, width)
    check(checkpoint)


@pytest.mark.parametrize("causal", [(False, True), (True, False), (True, True), (False, False)])
def test_causality_is_per_layer(tmp_path: Path, causal: tuple[bool, ...]) -> None:
    checkpoint = running.with_backbone(running.tiny(tmp_path, "zlab_dflash"), causal=causal)
    check(checkpoint)


@pytest.mark.parametrize("layer_types", [(SLIDING, FULL), (FULL, SLIDING), (SLIDING, SLIDING)])
@pytest.mark.parametrize("sliding_in_block", ["auto", "causal", "bidirectional"])
def test_windows_are_per_layer(tmp_path: Path, layer_types: tuple[str, ...], sliding_in_block: SlidingInBlock) -> None:
    def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
        config |= {"layer_types": list(layer_types), "sliding_window": 9, "use_sliding_window": True}

    checkpoint = running.tiny(tmp_path, "zlab_dflash", edit)
    assert checkpoint.spec.backbone.causal == tuple(kind == SLIDING for kind in layer_types)
    check(checkpoint, sliding_in_block)


def test_a_sliding_layer_forgets_what_its_window_does_not_hold(tmp_path: Path) -> None:
    def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
        config |= {"layer_types": [SLIDING] * 2, "sliding_window": 9, "use_sliding_window": True}

    checkpoint = running.tiny(tmp_path, "zlab_dflash", edit)
    (step,) = running.random_steps(checkpoint, [(30, 8)])
    outputs = []
    for first in (0, 1):  # row 22 is at distance 9 from block row 1, the first one that comes out
        states = step.hidden_states.copy()
        states[: 22 + first] += 1
        outputs.append(Sdpa(build_draft(checkpoint)).step(Step(states, step.block))["last_hidden_state"])
    plain = Sdpa(build_draft(checkpoint)).step(step)["last_hidden_state"]
    np.testing.assert_array_equal(outputs[0], plain)
    assert np.abs(outputs[1] - plain).max() > 1e-3


@pytest.mark.parametrize(("kernel_size", "group_size"), [(1, 16), (2, 4), (3, 1), (4, 8)])
def test_convolutions_of_any_size(tmp_path: Path, kernel_size: int, group_size: int) -> None:
    def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
        config["dflash_config"] |= {"conv_kernel_size": kernel_size, "conv_group_size": group_size}
        for name in [name for name in tensors if "_conv." in name]:
            rows = 2 * kernel_size * checkpoints.HIDDEN // group_size
            shape = (2, kernel_size, checkpoints.HIDDEN) if "base" in name else (rows, checkpoints.HIDDEN)
            tensors[name] = (random(*shape) / 4).astype(checkpoints.BF16)

    check(running.tiny(tmp_path, "zlab_dflash2", edit))


class TestGemma4:
    """DeepSpec's Gemma-4 layers, hand-made parts that the shared reference could get wrong the same way."""

    def test_embedding_scale_and_soft_cap(self, tmp_path: Path) -> None:
        checkpoint = running.tiny(tmp_path, "deepspec_gemma4")
        assert checkpoint.spec.input_embedding_scale == 4.0
        assert checkpoint.spec.final_logit_softcapping == 30.0
        (step,) = running.random_steps(checkpoint, [(5, 8)])
        model = build_draft(checkpoint)
        logits = Sdpa(model).step(step)["logits"]
        rows = Numpy(checkpoint).rows(step)
        raw = rows @ checkpoint.weights.tensor("lm_head.weight").astype(np.float64).T
        np.testing.assert_allclose(logits, 30 * np.tanh(raw / 30), rtol=0, atol=3e-5)
        assert np.abs(logits - raw).max() > 1e-3
        assert ir.get_text(model, Key.FINAL_LOGIT_SOFTCAPPING) == "0"  # in the graph: nobody may cap again
        assert ir.get_text(model, Key.INPUT_EMBEDDING_SCALE) == "1"

    @pytest.mark.parametrize("shared", [True, False])
    def test_values_that_are_the_keys_or_not(self, tmp_path: Path, shared: bool) -> None:
        def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
            if not shared:
                config |= {"attention_k_eq_v": False, "num_key_value_heads": checkpoints.KV_HEADS}
                config["num_global_key_value_heads"] = checkpoints.HEADS  # of layers whose values are the keys
                for layer in range(checkpoints.LAYERS):
                    keys = tensors[f"layers.{layer}.self_attn.k_proj.weight"]
                    tensors[f"layers.{layer}.self_attn.v_proj.weight"] = random(*keys.shape)

        checkpoint = running.tiny(tmp_path, "deepspec_gemma4", edit)
        assert checkpoint.spec.backbone.shared_key_value is shared
        check(checkpoint)

    def test_norms_multiply_by_the_weight_and_the_layer_by_its_scalar(self, tmp_path: Path) -> None:
        """With all branches silenced by zero weights behind them, rows are the input times both scalars."""

        def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
            for name in tensors:
                if "post_attention_layernorm" in name or "post_feedforward_layernorm" in name:
                    tensors[name] = np.zeros_like(tensors[name])  # were it 1 + weight, the branch would be heard
                if name.endswith("layer_scalar"):
                    tensors[name] = np.full_like(tensors[name], 1e-3)  # small enough for the last norm's epsilon

        checkpoint = running.tiny(tmp_path, "deepspec_gemma4", edit)
        (step,) = running.random_steps(checkpoint, [(5, 8)])
        x = checkpoint.weights.tensor("embed_tokens.weight").astype(np.float64)[step.block] * 4 * 1e-3
        x *= float(checkpoint.weights.tensor("layers.1.layer_scalar")[0]) / 1e-3
        x *= float(checkpoint.weights.tensor("layers.0.layer_scalar")[0])
        normed = x / np.sqrt(np.mean(x**2, -1, keepdims=True) + checkpoint.spec.backbone.rms_norm_eps)
        rows = normed * checkpoint.weights.tensor("norm.weight").astype(np.float64)
        np.testing.assert_allclose(Numpy(checkpoint).rows(step), rows, rtol=0, atol=1e-9)
        check(checkpoint)


class TestTables:
    @pytest.mark.parametrize("dtype", [np.int64, np.int32])
    def test_pruned_logits_and_their_map(self, tmp_path: Path, dtype: type) -> None:
        def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
            tensors["d2t"] = tensors["d2t"].astype(dtype)

        checkpoint = running.tiny(tmp_path, "minicpm_pruned", edit)
        (step,) = running.random_steps(checkpoint, [(5, 8)])
        outputs = Sdpa(build_draft(checkpoint)).step(step)
        assert outputs["logits"].shape == (8, checkpoints.DRAFT_VOCAB)
        np.testing.assert_array_equal(outputs["d2t"], checkpoint.weights.tensor("d2t"))
        assert outputs["d2t"].dtype == np.int64

    def test_pruned_dflash2(self, tmp_path: Path) -> None:
        def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
            config["draft_vocab_size"] = checkpoints.DRAFT_VOCAB
            others = checkpoints.BUILDERS["speculators_dspark"]()[1]
            tensors |= {name: others[name] for name in ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")}
            codebook = "candidate_selector.successor_codebook"
            tensors[codebook] = tensors[codebook][: checkpoints.DRAFT_VOCAB]

        checkpoint = running.tiny(tmp_path, "speculators_dflash2", edit)
        model = build_draft(checkpoint)
        assert [port.any_name for port in model.outputs] == ["logits", "d2t", "last_hidden_state"]
        check(checkpoint)

    def test_output_multiplier_comes_before_the_cap(self, tmp_path: Path) -> None:
        def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
            config |= {"output_multiplier": 7.0, "final_logit_softcapping": 5.0, "input_embedding_scale": 3.0}

        checkpoint = running.tiny(tmp_path, "speculators_dflash", edit)
        assert checkpoint.spec.output_multiplier == 7.0
        check(checkpoint)

    def test_mask_embedding_of_a_side_file(self, tmp_path: Path) -> None:
        plain = running.tiny(tmp_path / "plain", "deepspec_vanilla")
        vector = random(checkpoints.HIDDEN)
        checkpoints.write_safetensors(plain.path / "mask_embedding.safetensors", {"mask_embedding": vector})
        checkpoint = running.own(read_checkpoint(plain.path))
        (step,) = running.random_steps(checkpoint, [(5, 8)])
        step.block[1:] = checkpoints.MASK
        found = Sdpa(build_draft(checkpoint)).step(step)["logits"]
        np.testing.assert_allclose(found, Numpy(checkpoint).step(step), rtol=0, atol=3e-5)
        assert np.abs(found - Sdpa(build_draft(plain)).step(step)["logits"]).max() > 0.1
