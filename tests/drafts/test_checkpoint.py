"""Every published format reaches its normal form, and says where each value came from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovgraft.drafts.checkpoint import is_checkpoint, read_checkpoint
from ovgraft.drafts.contract import Key
from ovgraft.drafts.spec import EMBEDDING_OUTPUT, Confidence, DraftSpec, Family, HeadType
from ovgraft.drafts.tensors import expected_tensors
from ovgraft.errors import CheckpointError
from tests.drafts.checkpoints import (
    BLOCK,
    BUILDERS,
    DRAFT_VOCAB,
    HIDDEN,
    LAYER_IDS,
    LAYERS,
    MASK,
    RANK,
    TARGET_LAYERS,
    VOCAB,
    Config,
    Tensors,
    write_checkpoint,
    write_npz,
    write_onnx,
    write_shards,
)

NORMAL: dict[str, tuple[str, Family, int, HeadType, Confidence]] = {
    "zlab_dflash": ("zlab_dflash", Family.DFLASH, 1, HeadType.NONE, Confidence.NONE),
    "zlab_dflash2": ("zlab_dflash2", Family.DFLASH2, 1, HeadType.DFLASH2, Confidence.NONE),
    "deepspec_vanilla": ("deepspec", Family.DSPARK, 0, HeadType.VANILLA, Confidence.MARKOV),
    "deepspec_gated": ("deepspec", Family.DSPARK, 0, HeadType.GATED, Confidence.MARKOV),
    "deepspec_rnn": ("deepspec", Family.DSPARK, 0, HeadType.RNN, Confidence.MARKOV),
    "deepspec_headless": ("deepspec", Family.DSPARK, 0, HeadType.NONE, Confidence.NONE),
    "deepspec_gemma4": ("deepspec", Family.DSPARK, 0, HeadType.VANILLA, Confidence.MARKOV),
    "minicpm_pruned": ("deepspec_pruned", Family.DSPARK, 0, HeadType.VANILLA, Confidence.MARKOV),
    "modelopt": ("modelopt", Family.DSPARK, 0, HeadType.GATED, Confidence.MARKOV),
    "specforge": ("specforge", Family.DSPARK, 0, HeadType.VANILLA, Confidence.MARKOV),
    "speculators_dflash": ("speculators", Family.DFLASH, 1, HeadType.NONE, Confidence.NONE),
    "speculators_dspark": ("speculators", Family.DSPARK, 0, HeadType.VANILLA, Confidence.MARKOV),
    "speculators_dflash2": ("speculators", Family.DFLASH2, 1, HeadType.DFLASH2, Confidence.NONE),
}

Reader = Callable[[Config, Tensors], DraftSpec]


@pytest.mark.parametrize("name", BUILDERS)
def test_normal_form(name: str, read: Reader) -> None:
    config, tensors = BUILDERS[name]()
    spec = read(config, tensors)
    form, family, offset, head, confidence = NORMAL[name]
    pruned = "d2t" in tensors
    assert (spec.format, spec.family, spec.candidate_position_offset) == (form, family, offset)
    assert spec.layer_ids == LAYER_IDS
    assert spec.source_layer_ids == tuple(i + ("speculators" in name) for i in LAYER_IDS)
    assert spec.num_target_layers == (None if "speculators" in name else TARGET_LAYERS)
    assert (spec.mask_token_id, spec.block_size, spec.max_candidates) == (MASK, BLOCK, BLOCK - offset)
    assert (spec.head.type, spec.head.rank) == (head, 0 if head is HeadType.NONE else RANK)
    assert spec.confidence is confidence
    assert (spec.vocabulary.size, spec.vocabulary.draft_size) == (VOCAB, DRAFT_VOCAB if pruned else VOCAB)
    assert spec.vocabulary.d2t_sorted is (False if pruned else None)
    assert spec.own_embedding is ("embed_tokens.weight" in tensors)
    assert spec.own_lm_head is ("lm_head.weight" in tensors)
    assert spec.frozen_copies is (form == "deepspec")
    assert spec.version == (2 if family is Family.DFLASH2 else 1)
    assert (spec.backbone.hidden_size, spec.backbone.num_hidden_layers) == (HIDDEN, LAYERS)
    assert spec.warnings == ()


@pytest.mark.parametrize("name", BUILDERS)
def test_tensors_have_one_scheme_of_names(name: str, tmp_path: Path) -> None:
    config, tensors = BUILDERS[name]()
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, config, tensors))
    expected = expected_tensors(checkpoint.spec)
    assert {tensor for tensor, rule in expected.items() if not rule.optional} <= set(checkpoint.weights)
    for tensor in checkpoint.weights:
        assert checkpoint.weights.tensor(tensor).shape == expected[tensor].shape
    stored = sorted((value.shape, value.tobytes()) for value in tensors.values())
    read = [checkpoint.weights.tensor(tensor) for tensor in checkpoint.weights]
    assert sorted((value.shape, value.tobytes()) for value in read) == stored


@pytest.mark.parametrize("name", BUILDERS)
def test_every_value_says_where_it_came_from(name: str, read: Reader) -> None:
    spec = read(*BUILDERS[name]())
    rows = spec.rows()
    assert [row for row in rows if not row[2]] == []
    assert set(spec.sources) <= {row[0] for row in rows}
    assert {item.name for item in fields(DraftSpec)} - {"sources", "warnings"} <= {
        row[0].partition(".")[0] for row in rows
    }
    for field, source in spec.sources.items():
        for key in source.key.split(", ") if source.file == "config.json" else ():
            value: Any = BUILDERS[name]()[0]
            for part in key.split("."):
                value = value[part]
            assert value is not None, field


@pytest.mark.parametrize("name", BUILDERS)
def test_the_json_form(name: str, read: Reader) -> None:
    spec = read(*BUILDERS[name]())
    data = json.loads(json.dumps(spec.to_dict()))
    assert data["layer_ids"] == list(LAYER_IDS)
    assert data["head"]["type"] == str(spec.head.type)
    assert data["backbone"]["rope"]["theta"] == spec.backbone.rope.theta
    assert data["sources"]["block_size"]["file"] == "config.json"
    assert not any("/" in source["file"] for source in data["sources"].values())


def test_rt_info_of_a_plain_draft(read: Reader) -> None:
    assert read(*BUILDERS["zlab_dflash"]()).rt_info() == {
        Key.VERSION: "1",
        Key.MASK_TOKEN_ID: "3",
        Key.TARGET_LAYER_IDS: "1,4",
        Key.CANDIDATE_POSITION_OFFSET: "1",
        Key.BLOCK_SIZE: "8",
        Key.VOCAB_SIZE: "64",
    }


def test_rt_info_of_everything_else(read: Reader) -> None:
    config, tensors = BUILDERS["speculators_dspark"]()
    config |= {"output_multiplier": 0.19611613513818404, "final_logit_softcapping": 20.0, "input_embedding_scale": 8}
    info = read(config, tensors).rt_info()
    assert info[Key.DRAFT_VOCAB_SIZE] == "24"
    assert (info[Key.MARKOV_HEAD_TYPE], info[Key.MARKOV_RANK]) == ("vanilla", "4")
    assert info[Key.OUTPUT_MULTIPLIER] == "0.19611613513818404"
    assert (info[Key.FINAL_LOGIT_SOFTCAPPING], info[Key.INPUT_EMBEDDING_SCALE]) == ("20.0", "8.0")
    assert read(*BUILDERS["zlab_dflash2"]()).rt_info()[Key.ACTIVATIONS_SCALE_FACTOR] == "32.0"


@pytest.mark.parametrize("layout", ["shards", "npz", "onnx"])
def test_other_file_layouts_give_the_same_draft(layout: str, tmp_path: Path) -> None:
    config, tensors = BUILDERS["speculators_dspark"]()
    one = read_checkpoint(write_checkpoint(tmp_path / "one", config, tensors))
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if layout == "shards":
        write_shards(folder, tensors)
    elif layout == "npz":
        write_npz(folder / "model.npz", tensors)
    else:
        write_onnx(folder / "model.onnx", tensors, external=True)
    other = read_checkpoint(folder)
    assert other.spec == one.spec
    assert other.digest() == one.digest()


def test_target_ids_of_a_pruned_draft(tmp_path: Path) -> None:
    config, tensors = BUILDERS["minicpm_pruned"]()
    ids = read_checkpoint(write_checkpoint(tmp_path, config, tensors)).target_ids()
    assert ids is not None
    for draft_id, token in enumerate(ids):
        assert token == draft_id + tensors["d2t"][draft_id]
    config, tensors = BUILDERS["zlab_dflash"]()
    assert read_checkpoint(write_checkpoint(tmp_path / "full", config, tensors)).target_ids() is None


def test_what_looks_like_a_checkpoint(tmp_path: Path) -> None:
    assert not is_checkpoint(tmp_path)
    write_checkpoint(tmp_path, *BUILDERS["zlab_dflash"]())
    assert is_checkpoint(tmp_path)
    (tmp_path / "openvino_model.xml").write_text("")
    assert not is_checkpoint(tmp_path)


class TestDefaultsAndSpellings:
    def test_sizes_a_speculators_config_leaves_out(self, read: Reader) -> None:
        config, tensors = BUILDERS["speculators_dflash"]()
        spec = read(config, tensors)
        assert spec.backbone.rms_norm_eps == 1e-6
        assert spec.sources["backbone.rms_norm_eps"].note == "default of transformers"
        del config["transformer_layer_config"]["head_dim"]
        with pytest.raises(CheckpointError, match="self_attn") as caught:
            read(config, tensors)
        assert "384" in str(caught.value.expected)  # 3 heads of transformers' 128

    def test_head_dim_of_a_flat_config_is_hidden_over_heads(self, read: Reader) -> None:
        config, tensors = BUILDERS["zlab_dflash"]()
        del config["head_dim"]
        with pytest.raises(CheckpointError, match="even"):  # 16 // 3 = 5
            read(config, tensors)

    def test_fields_may_be_flat(self, read: Reader) -> None:
        config, tensors = BUILDERS["zlab_dflash2"]()
        nested = read(config, tensors)
        assert read(config | config.pop("dflash_config"), tensors) == nested

    def test_rope_in_the_older_spelling(self, read: Reader) -> None:
        config, tensors = BUILDERS["zlab_dflash"]()
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
        config["rope_parameters"] = yarn | {"rope_theta": 1e6}
        new = read(config, tensors)
        del config["rope_parameters"]
        config |= {
            "rope_theta": 1e6,
            "rope_scaling": {"type": "yarn"} | {k: v for k, v in yarn.items() if k != "rope_type"},
        }
        assert read(config, tensors) == new
        assert new.backbone.rope.type == "yarn"
        assert dict(new.backbone.rope.parameters) == {"factor": 4.0, "original_max_position_embeddings": 128}

    @pytest.mark.parametrize(
        ("kind", "parameters"),
        [
            ("linear", {"factor": 2.0}),
            ("dynamic", {"factor": 2.0}),
            ("yarn", {"factor": 2.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "truncate": False}),
            ("longrope", {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}),
            (
                "llama3",
                {
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            ),
        ],
    )
    def test_rope_types(self, read: Reader, kind: str, parameters: dict[str, Any]) -> None:
        config, tensors = BUILDERS["zlab_dflash"]()
        config["rope_parameters"] = {"rope_type": kind, "rope_theta": 1e4, **parameters}
        rope = read(config, tensors).backbone.rope
        assert rope.type == kind
        assert {key: list(value) if isinstance(value, tuple) else value for key, value in rope.parameters} == parameters

    def test_gemma4_layers(self, read: Reader) -> None:
        spec = read(*BUILDERS["deepspec_gemma4"]())
        backbone = spec.backbone
        assert (backbone.architecture, backbone.shared_key_value, backbone.attention_scale) == ("gemma4", True, 1.0)
        assert (backbone.rope.type, backbone.rope.theta) == ("proportional", 1e6)
        assert dict(backbone.rope.parameters) == {"partial_rotary_factor": 0.25}
        assert (spec.input_embedding_scale, spec.final_logit_softcapping) == (4.0, 30.0)

    def test_attention_bias(self, read: Reader) -> None:
        config, tensors = BUILDERS["zlab_dflash"]()
        for layer in range(LAYERS):
            for part in "qkvo":
                weight = tensors[f"layers.{layer}.self_attn.{part}_proj.weight"]
                tensors[f"layers.{layer}.self_attn.{part}_proj.bias"] = weight[:, 0]
        assert read(config | {"attention_bias": True}, tensors).backbone.attention_bias

    def test_llama_layers_have_no_norms(self, read: Reader) -> None:
        config, tensors = BUILDERS["zlab_dflash"]()
        bare = {name: value for name, value in tensors.items() if not name.endswith(("q_norm.weight", "k_norm.weight"))}
        assert not read(config | {"model_type": "llama"}, bare).backbone.qk_norm
        assert read(config | {"model_type": "llama"}, tensors).backbone.qk_norm

    def test_a_head_without_keys_is_told_by_its_tensors(self, read: Reader) -> None:
        config, tensors = BUILDERS["specforge"]()
        for key in ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"):
            del config["dflash_config"][key]
        spec = read(config, tensors)
        assert (spec.head.type, spec.head.rank, spec.confidence) == (HeadType.VANILLA, RANK, Confidence.MARKOV)

    def test_a_confidence_head_on_the_hidden_state_alone(self, read: Reader) -> None:
        config, tensors = BUILDERS["deepspec_vanilla"]()
        tensors["confidence_head.proj.weight"] = tensors["confidence_head.proj.weight"][:, :HIDDEN]
        assert read(config | {"confidence_head_with_markov": False}, tensors).confidence is Confidence.HIDDEN

    def test_early_specforge_files_keep_heads_in_a_container(self, read: Reader) -> None:
        config, tensors = BUILDERS["specforge"]()
        plain = read(config, tensors)
        moved = {(f"logit_head.{name}" if "_head." in name else name): value for name, value in tensors.items()}
        assert read(config, moved) == plain

    def test_code_books_with_a_suffix(self, tmp_path: Path) -> None:
        config, tensors = BUILDERS["zlab_dflash2"]()
        plain = read_checkpoint(write_checkpoint(tmp_path / "plain", config, tensors))
        moved = {(f"{name}.weight" if name.endswith("codebook") else name): value for name, value in tensors.items()}
        assert read_checkpoint(write_checkpoint(tmp_path / "moved", config, moved)).digest() == plain.digest()

    def test_tables_a_speculators_draft_does_not_save(self, read: Reader) -> None:
        config, tensors = BUILDERS["speculators_dspark"]()
        del tensors["embed_tokens.weight"]
        assert read(config, tensors).shares_embedding
        spec = read(*BUILDERS["speculators_dflash2"]())
        assert spec.shares_embedding
        assert spec.shares_lm_head

    def test_deepspec_files_without_tables(self, read: Reader) -> None:
        config, tensors = BUILDERS["deepspec_vanilla"]()
        del tensors["embed_tokens.weight"], tensors["lm_head.weight"]
        spec = read(config, tensors)
        assert (spec.format, spec.candidate_position_offset, spec.frozen_copies) == ("deepspec", 0, False)

    def test_the_embedding_output_is_a_layer_id(self, read: Reader) -> None:
        config, tensors = BUILDERS["deepspec_vanilla"]()
        assert read(config | {"target_layer_ids": [-1, 4]}, tensors).layer_ids == (EMBEDDING_OUTPUT, 4)
        config, tensors = BUILDERS["speculators_dspark"]()
        assert read(config | {"aux_hidden_state_layer_ids": [0, 5]}, tensors).layer_ids == (EMBEDDING_OUTPUT, 4)

    def test_a_mask_embedding_beside_the_weights(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path, *BUILDERS["zlab_dflash"]())
        vector = np.arange(HIDDEN, dtype=np.float32)
        np.savez(folder / "mask_embedding.npz", vector=vector[None])
        checkpoint = read_checkpoint(folder)
        assert checkpoint.spec.own_mask_embedding
        np.testing.assert_array_equal(checkpoint.weights.tensor("mask_embedding"), vector)


def test_zoo_checkpoints_reach_the_manifest_s_normal_form(shared: Path) -> None:
    root = shared / "zoo" / "checkpoints"
    manifest = json.loads((root / "manifest.json").read_text())
    assert set(manifest) == {folder.name for folder in root.iterdir() if folder.is_dir()}
    for name, entry in manifest.items():
        assert entry["loads"], name
        checkpoint = read_checkpoint(root / name)
        spec, normal = checkpoint.spec, dict(entry["normal"])
        assert spec.format == entry["format"], name
        found: dict[str, Any] = {
            "family": str(spec.family),
            "candidate_position_offset": spec.candidate_position_offset,
            "layer_output_ids": list(spec.layer_ids),
            "mask_token_id": spec.mask_token_id,
            "block_size": spec.block_size,
            "head": str(spec.head.type),
            "markov_rank": spec.head.rank,
            "draft_vocab_size": spec.vocabulary.draft_size,
            "vocab_size": spec.vocabulary.size,
            "hidden_size": spec.backbone.hidden_size,
            "num_hidden_layers": spec.backbone.num_hidden_layers,
            "own_embedding": spec.own_embedding,
            "own_lm_head": spec.own_lm_head,
            "confidence": None if spec.confidence is Confidence.NONE else str(spec.confidence),
        }
        if spec.backbone.convolution is not None:
            found |= {
                "selector_rank": spec.head.rank,
                "selector_top_k": spec.head.top_k,
                "conv_kernel_size": spec.backbone.convolution.kernel_size,
                "conv_group_size": spec.backbone.convolution.group_size,
            }
        assert {key: found[key] for key in normal} == normal, name
        stored = entry["tensors"]
        by_size = sorted((tuple(shape), dtype) for dtype, shape in stored.values())
        infos = [checkpoint.weights.info(tensor) for tensor in checkpoint.weights]
        assert sorted((info.shape, info.dtype.name) for info in infos) == by_size, name


def test_the_trained_dspark_draft(shared: Path) -> None:
    checkpoint = read_checkpoint(shared / "models" / "smollm2-135m-dspark")
    spec = checkpoint.spec
    assert (spec.format, spec.family, spec.candidate_position_offset) == ("deepspec", Family.DSPARK, 0)
    assert (spec.layer_ids, spec.mask_token_id, spec.block_size) == ((1, 8, 14, 21, 27), 17, 8)
    assert (spec.head.type, spec.head.rank, spec.head.top_k) == (HeadType.VANILLA, 64, 64)
    assert spec.shares_embedding
    assert spec.shares_lm_head
    assert spec.warnings == ()
    assert checkpoint.weights.info("markov_head.markov_w2.weight").shape == (49152, 64)
