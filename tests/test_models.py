"""The builders themselves: they must be decoders and drafts, or every test on them proves nothing."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino._offline_transformations import paged_attention_transformation

from tests import models, support

FORMATS = ("f32", "f16", "bf16", "int8", "int4")
TOKENS = np.random.default_rng(7).integers(0, 64, (1, 11))


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("weights", FORMATS)
def test_decoder_prefill_and_steps_agree(weights: Any) -> None:
    model = models.tiny_decoder(weights=weights)
    whole = support.run_decoder(model, TOKENS)["logits"]
    steps = support.run_decoder(model, TOKENS, split=(5, 6, 8))["logits"]
    assert np.abs(whole).max() > 0.5
    np.testing.assert_allclose(steps, whole, atol=2e-5)


def test_decoder_is_causal_and_reads_its_mask() -> None:
    model = models.tiny_decoder()
    changed = TOKENS.copy()
    changed[0, -1] = (changed[0, -1] + 1) % 64
    first, second = (support.run_decoder(model, tokens)["logits"] for tokens in (TOKENS, changed))
    np.testing.assert_array_equal(first[:, :-1], second[:, :-1])
    assert np.abs(first[:, -1] - second[:, -1]).max() > 0.1
    compiled = support.compile_parity(model)
    feeds = support.decoder_feeds(compiled.inputs, TOKENS, 0)
    feeds["attention_mask"][0, 2] = 0
    assert np.abs(support.infer(model, feeds)["logits"] - first)[0, 3:].max() > 0.01


@pytest.mark.parametrize("weights", FORMATS)
def test_decoder_converts_to_paged_attention(weights: Any) -> None:
    model = models.tiny_decoder(weights=weights)
    paged_attention_transformation(model, False, False, True, False, False, False, False)
    names = {name for port in model.inputs for name in port.names}
    assert {"past_lens", "key_cache.0", "value_cache.2"} <= names
    assert "attention_mask" not in names
    ov.Core().compile_model(model, "CPU")


@pytest.mark.parametrize("weights", FORMATS)
def test_dflash_states_hold_context_rows_only(weights: Any) -> None:
    model = models.tiny_dflash_draft(weights=weights)
    random = np.random.default_rng(3)
    context = random.standard_normal((1, 9, 96)).astype(np.float32)
    block = random.standard_normal((1, 4, 32)).astype(np.float32)
    whole = support.infer(model, support.draft_feeds(context, block))["last_hidden_state"]
    assert whole.shape == (1, 3, 32)
    request = support.compile_parity(model).create_infer_request()
    noise = random.standard_normal((1, 6, 32)).astype(np.float32)
    request.infer(support.draft_feeds(context[:, :5], noise))
    assert request.query_state()[0].state.shape[2] == 5
    request.infer(support.draft_feeds(context[:, 5:], block, past=5))
    np.testing.assert_allclose(request.get_tensor("last_hidden_state").data, whole, atol=2e-5)


def test_eagle3_draft_converts_and_steps() -> None:
    model = models.tiny_eagle3_draft()
    states = np.random.default_rng(5).standard_normal((1, 11, 96)).astype(np.float32)
    whole = support.run_decoder(model, TOKENS, extra={"hidden_states": states})
    request = support.compile_parity(model).create_infer_request()
    feeds = support.decoder_feeds([p for p in model.inputs if "hidden_states" not in p.names], TOKENS[:, :6], 0)
    request.infer({**feeds, "hidden_states": states[:, :6]})
    np.testing.assert_allclose(request.get_tensor("logits").data, whole["logits"][:, :6], atol=2e-5)
    assert whole["d2t"].shape == (16,)
    paged_attention_transformation(model, False, False, True, False, False, False, False)


def test_text_embeddings_hold_the_table_of_the_decoder() -> None:
    with_ids = models.tiny_decoder(seed=4)
    with_embeds = models.tiny_decoder(seed=4, inputs_embeds=True)
    embeds = support.infer(models.tiny_text_embeddings(seed=4), {"input": TOKENS})["inputs_embeds"]
    table = next(op for op in with_ids.get_ops() if op.get_friendly_name() == "self.model.embed_tokens.weight")
    np.testing.assert_array_equal(embeds[0], table.data[TOKENS[0]])
    assert support.run_decoder(with_embeds, TOKENS, embeds=embeds)["logits"].shape == (1, 11, 64)


@pytest.mark.parametrize(
    "options", [{"tied": True}, {"embedding_scale": 4.0}, {"softcap": 5.0}, {"qk_norm": False}, {"annotated": True}]
)
def test_every_option_changes_the_graph_and_runs(options: dict[str, Any]) -> None:
    model = models.tiny_decoder(**options)
    logits = support.run_decoder(model, TOKENS)["logits"]
    if "softcap" in options:
        assert np.abs(logits).max() < 5.0
    if options == {"annotated": True}:
        text = model.get_rt_info(["hidden_states_decoder_layers"]).astype(str)
        assert text.startswith('{"layers":{"0":{"producer":"__module.model.layers.0/aten::add/Add_1","output_index":0}')
    else:
        assert np.abs(logits - support.run_decoder(models.tiny_decoder(), TOKENS)["logits"]).max() > 0.1


@pytest.mark.parametrize("build", [models.tiny_decoder, models.tiny_dflash_draft, models.tiny_eagle3_draft])
@pytest.mark.parametrize("weights", FORMATS)
def test_same_seed_same_bytes_other_seed_other_bytes(build: Any, weights: Any, tmp_path: Path) -> None:
    build = inspect.unwrap(build)  # anew each time
    folders = [
        models.write_package(build(weights=weights, seed=seed), tmp_path / str(i)) for i, seed in enumerate((8, 8, 9))
    ]
    first, second, third = map(_files, folders)
    assert first == second
    assert first["openvino_model.bin"] != third["openvino_model.bin"]


@pytest.mark.parametrize("build", [models.tiny_decoder, models.tiny_dflash_draft, models.tiny_eagle3_draft])
def test_friendly_names_are_unique(build: Any) -> None:
    names = [op.get_friendly_name() for op in build().get_ops()]
    assert len(names) == len(set(names))
