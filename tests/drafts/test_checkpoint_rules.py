"""What published drafts got wrong in the field, and what configs contradict: each is refused or told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovgraft.drafts.checkpoint import read_checkpoint
from ovgraft.drafts.spec import DraftSpec, Family
from ovgraft.drafts.target_fit import target_mismatches
from ovgraft.errors import CheckpointError
from tests.drafts.checkpoints import (
    BF16,
    BLOCK,
    BUILDERS,
    HIDDEN,
    LAYER_IDS,
    RANK,
    VOCAB,
    Config,
    Tensors,
    write_checkpoint,
)

Reader = Callable[[Config, Tensors], DraftSpec]
Refuser = Callable[..., CheckpointError]


def inside(config: Config, **values: Any) -> Config:
    return config | {"dflash_config": config["dflash_config"] | values}


class TestLayerIds:
    def test_two_conventions_of_one_draft_are_one(self, read: Reader) -> None:
        deepspec = read(*BUILDERS["deepspec_vanilla"]())
        speculators = read(*BUILDERS["speculators_dspark"]())
        assert deepspec.layer_ids == speculators.layer_ids == LAYER_IDS
        assert deepspec.source_layer_ids != speculators.source_layer_ids
        assert speculators.layer_id_convention == "input of layer i"
        assert "output of layer i - 1" in str(speculators.sources["layer_ids"])

    def test_an_id_one_past_the_end_names_the_convention(self, refused: Refuser) -> None:
        config, tensors = BUILDERS["deepspec_vanilla"]()
        error = refused(config | {"target_layer_ids": [1, 6]}, tensors, "target_layer_ids", "6 is out of range")
        assert error.expected == "[-1, 5]: output of layer i of 6 target layers"

    def test_negative_ids_do_not_wrap(self, refused: Refuser) -> None:
        config, tensors = BUILDERS["zlab_dflash"]()
        refused(inside(config, target_layer_ids=[-1, 4]), tensors, "dflash_config.target_layer_ids", "out of range")
        config, tensors = BUILDERS["speculators_dflash"]()
        refused(config | {"aux_hidden_state_layer_ids": [-1, 4]}, tensors, "aux_hidden_state_layer_ids")

    def test_deepspec_ids_rise(self, refused: Refuser, read: Reader) -> None:
        config, tensors = BUILDERS["deepspec_vanilla"]()
        refused(config | {"target_layer_ids": [4, 1]}, tensors, "target_layer_ids", "must rise")
        config, tensors = BUILDERS["zlab_dflash"]()
        assert read(inside(config, target_layer_ids=[4, 1]), tensors).layer_ids == (4, 1)

    def test_the_width_of_the_fc_counts_the_layers(self, refused: Refuser) -> None:
        config, tensors = BUILDERS["zlab_dflash"]()
        tensors["fc.weight"] = tensors["fc.weight"][:, :HIDDEN]
        refused(config, tensors, "fc.weight", "2 target layers")

    def test_the_last_layer_is_ambiguous(self, read: Reader) -> None:
        config, tensors = BUILDERS["zlab_dflash"]()
        (warning,) = read(inside(config, target_layer_ids=[1, 5]), tensors).warnings
        assert warning.code == "last-layer-ambiguous"

    def test_a_target_with_too_few_layers(self, read: Reader) -> None:
        spec = read(*BUILDERS["speculators_dflash"]())
        assert target_mismatches(spec, num_layers=6, hidden_size=HIDDEN, vocab_size=VOCAB) == ()
        (reason,) = target_mismatches(spec, num_layers=4, hidden_size=HIDDEN, vocab_size=VOCAB)
        assert reason.code == "layer-out-of-range"
        assert "5 = output of layer 4" in reason.message
        assert "input of layer i" in reason.message

    def test_a_target_of_another_size(self, read: Reader) -> None:
        spec = read(*BUILDERS["zlab_dflash"]())
        reasons = target_mismatches(spec, num_layers=7, hidden_size=HIDDEN * 2, vocab_size=VOCAB + 1)
        assert [reason.code for reason in reasons] == ["layer-count", "hidden-size", "embedding-width", "vocabulary"]


class TestRowOffset:
    def test_headless_deepspec_rows_are_not_z_lab_s(self, read: Reader) -> None:
        assert read(*BUILDERS["deepspec_headless"]()).candidate_position_offset == 0
        config, tensors = BUILDERS["deepspec_headless"]()
        assert read(config | {"architectures": ["DFlashDraftModel"]}, tensors).candidate_position_offset == 0

    @pytest.mark.parametrize("said", [0, 1])
    def test_a_dflash_draft_with_a_markov_head_must_say(self, read: Reader, refused: Refuser, said: int) -> None:
        config, tensors = BUILDERS["specforge"]()
        config |= {"architectures": ["DFlashDraftModel"]}
        config = inside(config, projector_type=None)
        error = refused(config, tensors, "candidate_position_offset", "missing")
        assert "candidate_position_offset" in str(error.hint)
        spec = read(config | {"candidate_position_offset": said}, tensors)
        assert spec.candidate_position_offset == said
        assert spec.sources["candidate_position_offset"].key == "candidate_position_offset"

    def test_tables_and_nothing_else(self, refused: Refuser) -> None:
        config, _ = BUILDERS["zlab_dflash"]()
        refused(config, BUILDERS["deepspec_headless"]()[1], "candidate_position_offset", "missing")

    def test_shift_label_and_sample_from_anchor_are_heard(self, read: Reader) -> None:
        config, tensors = BUILDERS["modelopt"]()
        assert read(inside(config, shift_label=False), tensors).candidate_position_offset == 1
        config, tensors = BUILDERS["speculators_dspark"]()
        assert read(config | {"sample_from_anchor": False}, tensors).candidate_position_offset == 1

    def test_keys_that_disagree(self, refused: Refuser) -> None:
        config, tensors = BUILDERS["speculators_dspark"]()
        refused(config | {"shift_label": False}, tensors, "shift_label", "contradict")
        config, tensors = BUILDERS["modelopt"]()
        refused(config | {"candidate_position_offset": 1}, tensors, "dflash_config.shift_label", "contradict")

    @pytest.mark.parametrize(("family", "offset"), [("dspark", 0), ("dflash", 1)])
    def test_an_old_speculators_file_is_told_by_its_token_count(
        self, read: Reader, refused: Refuser, family: str, offset: int
    ) -> None:
        config, tensors = BUILDERS[f"speculators_{family}"]()
        del config["sample_from_anchor"]
        method = {"proposal_type": "greedy", "speculative_tokens": BLOCK - offset}
        config |= {"speculators_config": {"algorithm": family, "proposal_methods": [method]}}
        assert read(config, tensors).candidate_position_offset == offset
        method["speculative_tokens"] = BLOCK - 1 + offset
        refused(config, tensors, "candidate_position_offset", "missing")
        # the key says what was trained, the count only what is proposed
        assert read(config | {"sample_from_anchor": True}, tensors).candidate_position_offset == 0

    def test_defaults_that_trainer_and_servers_disagree_on(self, read: Reader, refused: Refuser) -> None:
        config, tensors = BUILDERS["speculators_dspark"]()
        del config["sample_from_anchor"]
        refused(config, tensors, "candidate_position_offset", "missing")
        config, tensors = BUILDERS["speculators_dflash"]()
        del config["sample_from_anchor"]
        assert read(config, tensors).candidate_position_offset == 1

    def test_a_block_of_one_row_proposes_nothing(self, refused: Refuser, read: Reader) -> None:
        config, tensors = BUILDERS["zlab_dflash"]()
        refused(config | {"block_size": 1}, tensors, "block_size")
        config, tensors = BUILDERS["deepspec_vanilla"]()
        assert read(config | {"block_size": 1}, tensors).max_candidates == 1


@pytest.mark.parametrize(
    "architecture", ["Qwen3DSparkModel", "DSparkDraftModel", "DFlashDraftModel", "DSparkSpeculator"]
)
@pytest.mark.parametrize(
    "name", ["deepspec_vanilla", "deepspec_headless", "modelopt", "specforge", "speculators_dspark"]
)
def test_one_architecture_name_means_several_formats(name: str, architecture: str, read: Reader) -> None:
    config, tensors = BUILDERS[name]()
    spec = read(config | {"architectures": [architecture]}, tensors)
    assert spec == read(config, tensors)
    assert (spec.family, spec.candidate_position_offset) == (Family.DSPARK, 0)


@pytest.mark.parametrize("name", ["deepspec_vanilla", "specforge", "speculators_dspark"])
def test_a_dspark_file_that_lost_its_head(name: str, refused: Refuser) -> None:
    config, tensors = BUILDERS[name]()
    headless = {key: value for key, value in tensors.items() if not key.startswith(("markov_head", "confidence_head"))}
    for place in (config, config.get("dflash_config", {})):
        for key in ("markov_rank", "enable_confidence_head"):
            place.pop(key, None)
    refused(config, headless, "markov_rank", "missing")


def test_a_dflash2_file_is_never_read_as_v1(refused: Refuser) -> None:
    config, tensors = BUILDERS["zlab_dflash2"]()
    plain = {name: value for name, value in tensors.items() if "conv" not in name and "selector" not in name}
    refused(config | {"architectures": ["DFlashDraftModel"]}, plain, "layers.0.attention_conv.base_kernel", "missing")
    config, tensors = BUILDERS["zlab_dflash"]()
    refused(config | {"architectures": ["DFlash2DraftModel"]}, tensors, "conv_kernel_size", "missing")


class TestAttention:
    def test_mixed_layers_keep_their_own_window_and_causality(self, read: Reader) -> None:
        config, tensors = BUILDERS["zlab_dflash"]()
        config |= {
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 8,
            "use_sliding_window": True,
        }
        backbone = read(config, tensors).backbone
        assert (backbone.sliding_window, backbone.causal) == (8, (True, False))
        assert read(config | {"is_causal": False}, tensors).backbone.causal == (False, False)
        assert read(config | {"is_causal": True}, tensors).backbone.causal == (True, True)

    @pytest.mark.parametrize("name", [name for name in BUILDERS if "gemma4" not in name])
    def test_the_default_inside_the_block_is_the_format_s(self, name: str, read: Reader) -> None:
        """Causal, but for DeepSpec's and speculators' DFlash-2."""
        config, tensors = BUILDERS[name]()
        transformer = config.get("transformer_layer_config", config)
        transformer |= {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8, "use_sliding_window": True}
        for place in (config, config.get("dflash_config", {})):
            for key in ("causal", "sliding_window_non_causal"):
                place.pop(key, None)
        default = not name.startswith(("deepspec", "minicpm")) and name != "speculators_dflash2"
        assert read(config, tensors).backbone.causal == (default,) * 2
        for said in (True, False):
            assert read(config | {"sliding_window_non_causal": said}, tensors).backbone.causal == (not said,) * 2
            assert read(config | {"is_causal": said}, tensors).backbone.causal == (said,) * 2

    def test_modelopt_windows_every_layer_with_one_flag(self, read: Reader, refused: Refuser) -> None:
        config, tensors = BUILDERS["modelopt"]()
        config = inside(config, use_swa=True, swa_window_size=32)
        backbone = read(config, tensors).backbone
        assert backbone.layer_types == ("sliding_attention",) * 2
        assert (backbone.sliding_window, backbone.causal) == (32, (False, False))
        refused(config | {"sliding_window": 16}, tensors, "dflash_config.swa_window_size", "contradict")
        refused(inside(config, use_swa="yes"), tensors, "dflash_config.use_swa")

    @pytest.mark.parametrize(
        ("change", "key"),
        [
            ({"use_sliding_window": False}, "use_sliding_window"),
            ({"sliding_window": None}, "sliding_window"),
            ({"sliding_window": 0}, "sliding_window"),
            ({"layer_types": ["sliding_attention"]}, "layer_types"),
            ({"layer_types": ["sliding_attention", "linear_attention"]}, "layer_types"),
            ({"is_causal": 1}, "is_causal"),
            ({"is_causal": True, "causal": False}, "causal"),
        ],
    )
    def test_contradictions(self, change: Config, key: str, refused: Refuser) -> None:
        config, tensors = BUILDERS["zlab_dflash2"]()
        refused(config | change, tensors, key)

    def test_without_layer_types_a_window_is_undecided(self, read: Reader, refused: Refuser) -> None:
        config, tensors = BUILDERS["zlab_dflash2"]()
        del config["layer_types"]
        refused(config, tensors, "layer_types", "missing")
        del config["use_sliding_window"]  # off in transformers' Qwen3Config, and MistralConfig has no such key
        assert read(config, tensors).backbone.layer_types == ("full_attention",) * 2
        refused(config | {"model_type": "mistral"}, tensors, "layer_types", "missing")
        assert read(config | {"model_type": "mistral", "sliding_window": None}, tensors).backbone.sliding_window is None


@pytest.mark.parametrize(
    ("name", "change", "key"),
    [
        ("zlab_dflash", {"block_size": 8, "dflash_config": {"block_size": 16}}, "block_size"),
        ("zlab_dflash", {"mask_token_id": 4}, "mask_token_id"),
        ("zlab_dflash", {"target_layer_ids": [1, 3]}, "target_layer_ids"),
        ("deepspec_vanilla", {"dflash_config": {"markov_rank": 8}}, "markov_rank"),
        ("deepspec_vanilla", {"markov_head_type": "gated"}, "markov_head_type"),
        ("deepspec_gated", {"markov_head_type": "vanilla"}, "markov_head_type"),
        ("deepspec_rnn", {"markov_head_type": "fir"}, "markov_head_type"),
        ("deepspec_vanilla", {"enable_confidence_head": False}, "enable_confidence_head"),
        ("deepspec_vanilla", {"use_confidence_head": False}, "use_confidence_head"),
        ("deepspec_vanilla", {"confidence_head_with_markov": False}, "confidence_head.proj.weight"),
        (
            "deepspec_headless",
            {"enable_confidence_head": True, "confidence_head_with_markov": False},
            "confidence_head.proj.weight",
        ),
        ("deepspec_headless", {"enable_confidence_head": True}, "confidence_head_with_markov"),
        ("deepspec_headless", {"markov_rank": 4}, "markov_head.markov_w1.weight"),
        ("deepspec_vanilla", {"draft_vocab_size": 24}, "d2t"),
        ("zlab_dflash", {"draft_vocab_size": 24}, "lm_head.weight"),
        ("zlab_dflash", {"draft_vocab_size": 80}, "lm_head.weight"),
        ("minicpm_pruned", {"draft_vocab_size": 48}, "lm_head.weight"),
        ("speculators_dspark", {"hidden_size": 32}, "hidden_size"),
        ("speculators_dspark", {"model_type": "llama"}, "model_type"),
        ("zlab_dflash", {"rope_theta": 1e6}, "rope_theta"),
        ("zlab_dflash", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
        ("zlab_dflash", {"attention_bias": True}, "layers.0.self_attn.q_proj.bias"),
        ("zlab_dflash", {"use_qk_norm": False}, "use_qk_norm"),
        ("zlab_dflash2", {"dflash_config": {"selector_top_k": 65}}, "dflash_config.selector_top_k"),
        ("zlab_dflash2", {"dflash_config": {"conv_group_size": 3}}, "dflash_config.conv_group_size"),
    ],
)
def test_contradictions(name: str, change: Config, key: str, refused: Refuser) -> None:
    config, tensors = BUILDERS[name]()
    for field, value in change.items():
        both = isinstance(value, dict) and isinstance(config.get(field), dict)
        config[field] = config[field] | value if both else value
    refused(config, tensors, key)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model_type": "deepseek_v3"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"attention_sink_bias": True}, "attention_sink_bias"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rope_parameters.rope_theta"),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "rope_parameters.rope_type"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "rope_parameters.factor"),
        ({"rope_parameters": {"rope_theta": 1e4, "factor": 2.0}}, "rope_parameters.factor"),
        ({"rope_parameters": {"rope_type": "yarn", "type": "linear", "rope_theta": 1e4}}, "rope_parameters.type"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_theta"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}}, "rope_parameters"),
        ({"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_theta": 1e4}}}, "rope_theta"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1}}, "rope_parameters.rope_theta"),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0],
                    "long_factor": [1.0] * 4,
                }
            },
            "rope_parameters.short_factor",
        ),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"output_multiplier": 0}, "output_multiplier"),
        ({"output_multiplier": -1.0}, "output_multiplier"),
        ({"input_embedding_scale": -1.0}, "input_embedding_scale"),
        ({"final_logit_softcapping": "20"}, "final_logit_softcapping"),
        ({"final_logit_softcapping": -20.0}, "final_logit_softcapping"),
        ({"projector_type": "domino"}, "projector_type"),
        ({"dspark_backbone_conv_enabled": True}, "dspark_backbone_conv_enabled"),
        ({"dflash_config": "x"}, "dflash_config"),
        ({"dflash_config": {"attention_mode": "mla"}}, "dflash_config.attention_mode"),
        ({"dflash_config": {"attention_modes": ["gqa", "kda"]}}, "dflash_config.attention_modes"),
        ({"dflash_config": {"new_gate": True}}, "dflash_config.new_gate"),
    ],
)
def test_what_would_compute_something_else(change: Config, key: str, refused: Refuser) -> None:
    config, tensors = BUILDERS["zlab_dflash"]()
    for field, value in change.items():
        both = field == "dflash_config" and isinstance(value, dict)
        config[field] = config[field] | value if both else value
    refused(config, tensors, key)


def test_unknown_keys_of_a_speculators_config(refused: Refuser, read: Reader) -> None:
    config, tensors = BUILDERS["speculators_dspark"]()
    refused(config | {"aux_hidden_state_scales": [1.0, 0.5]}, tensors, "aux_hidden_state_scales", "not supported")
    error = refused(config | {"hyper_connections": 4}, tensors, "hyper_connections", "not understood")
    assert "training" in str(error.hint)
    assert read(config | {"hyper_connections": None, "max_anchors": 64}, tensors).family is Family.DSPARK


def test_keys_copied_from_a_target_are_noise(read: Reader) -> None:
    """A published DeepSpec draft holds its target's gated and linear attention fields; its tensors have neither."""
    config, tensors = BUILDERS["deepspec_vanilla"]()
    noise = {
        "architectures": ["DFlashDraftModel"],
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "mtp_num_hidden_layers": 1,
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": list(LAYER_IDS), "markov_rank": RANK},
    }
    config["rope_parameters"] |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    assert read(config | noise, tensors) == read(config, tensors)


def test_an_output_gate_is_not_noise_when_it_is_there(refused: Refuser) -> None:
    config, tensors = BUILDERS["deepspec_vanilla"]()
    name = "layers.0.self_attn.q_proj.weight"
    tensors[name] = np.concatenate([tensors[name]] * 2)
    refused(config | {"attn_output_gate": True}, tensors, name)


class TestOtherFamilies:
    def test_eagle3(self, refused: Refuser) -> None:
        config, tensors = BUILDERS["zlab_dflash"]()
        named = refused(config | {"architectures": ["LlamaForCausalLMEagle3"]}, tensors, "architectures", "Eagle-3")
        assert "optimum-intel" in str(named.hint)
        refused(config, tensors | {"midlayer.hidden_norm.weight": tensors["norm.weight"]}, "architectures", "Eagle-3")
        config, tensors = BUILDERS["speculators_dflash"]()
        refused(config | {"speculators_model_type": "eagle3"}, tensors, "architectures", "Eagle-3")

    def test_speculators_of_other_kinds(self, refused: Refuser) -> None:
        config, tensors = BUILDERS["speculators_dflash"]()
        error = refused(config | {"speculators_model_type": "dflare"}, tensors, "speculators_model_type")
        assert error.expected == "dflash, dflash2, dspark"

    def test_a_target_with_a_draft_inside(self, refused: Refuser) -> None:
        config, tensors = BUILDERS["deepspec_vanilla"]()
        config["dspark_target_layer_ids"] = config.pop("target_layer_ids")
        refused(config, tensors, "dspark_target_layer_ids", "whole target")


def test_the_file_s_precision_is_kept(tmp_path: Path) -> None:
    config, tensors = BUILDERS["zlab_dflash"]()
    for dtype in (np.dtype(np.float32), np.dtype(np.float16), np.dtype(BF16)):
        converted = {name: value.astype(dtype) for name, value in tensors.items()}
        checkpoint = read_checkpoint(write_checkpoint(tmp_path, config, converted))
        for name in checkpoint.weights:
            assert checkpoint.weights.tensor(name).tobytes() == converted[name].tobytes()


def test_two_names_of_one_tensor(refused: Refuser) -> None:
    config, tensors = BUILDERS["zlab_dflash2"]()
    name = "candidate_selector.predecessor_codebook"
    refused(config, tensors | {f"{name}.weight": tensors[name]}, f"{name}.weight", "same one")
