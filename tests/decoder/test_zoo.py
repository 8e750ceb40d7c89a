"""Layers of every decoder in the zoo: the exporter's own record, and PyTorch's numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from ovgraft import decoder, ir
from ovgraft.decoder.to_paged import convert_to_paged
from ovgraft.drafts.contract import Key
from ovgraft.errors import StructureError
from tests import support

FP32 = ("qwen3", "qwen3_agree")
COMPRESSED = ("qwen3-int8", "qwen3-int4_sym_g32")
FP16 = tuple(sorted(set(support.DECODERS) - set(FP32) - set(COMPRESSED)))
MAMBA_KERNEL = 4

Zoo = Callable[[str], Path]


def read(zoo: Zoo, name: str) -> ov.Model:
    return ir.read_model(support.model_file(zoo(name)))


@pytest.mark.parametrize("name", support.ANNOTATED)
def test_annotation_is_the_exporters(zoo: Zoo, name: str) -> None:
    model = read(zoo, name)
    exported = ir.get_text(model, Key.HIDDEN_STATES_DECODER_LAYERS)
    ir.delete(model, Key.HIDDEN_STATES_DECODER_LAYERS)
    assert decoder.annotation_text(decoder.read_decoder(model)) == exported


def truth_feeds(model: ov.Model, truth: dict[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    extra = {key: truth[key] for key in ("per_layer_inputs", "position_ids") if key in truth}
    ports = [port for port in model.inputs if not extra.keys() & port.names]
    feeds = support.decoder_feeds(ports, truth["input_ids"].astype(np.int64), 0, truth.get("inputs_embeds")) | extra
    if name == "mamba":  # cache_position runs over the convolution's kernel there
        feeds["cache_position"] = np.arange(MAMBA_KERNEL, dtype=np.int64)
    return feeds


@pytest.mark.parametrize("name", [*FP32, *FP16])
def test_tapped_values_are_pytorchs(zoo: Zoo, shared: Path, name: str) -> None:
    folder, tolerance = ("truth", 1e-3) if name in FP32 else ("truth_fp16", 2e-2)
    truth = dict(np.load(shared / "zoo" / folder / f"{name}.npz"))
    model = read(zoo, name)
    found = decoder.read_decoder(model)
    expected = {f"layer_{layer.index}": layer.output for layer in found.layers} | {"lm_head_in": found.lm_head.hidden}
    assert sorted(expected) == sorted(key for key in truth if key.startswith("layer_") or key == "lm_head_in")
    model.add_results([ir.make_result(output, key) for key, output in expected.items()])
    values = support.infer(model, truth_feeds(model, truth, name))
    for key in (*expected, "logits"):
        np.testing.assert_allclose(values[key], truth[key], rtol=0, atol=tolerance, err_msg=key)


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_weights_do_not_move_the_boundaries(zoo: Zoo, name: str) -> None:
    def names(which: str) -> list[tuple[str, str]]:
        layers = decoder.read_decoder(read(zoo, which)).layers
        return [tuple(o.get_node().get_friendly_name() for o in (layer.entry, layer.output)) for layer in layers]

    assert names(name) == names("qwen3")


@pytest.mark.parametrize("name", [*support.DFLASH_DRAFTS, "qwen3_12l_eagle3_draft"])
def test_drafts_are_refused(zoo: Zoo, name: str) -> None:
    with pytest.raises(StructureError, match="draft model") as caught:
        decoder.read_decoder(read(zoo, name))
    assert {reason.code for reason in caught.value.reasons} == {"is-draft"}


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("gemma4/openvino_text_embeddings_model.xml", "no-lm-head"),
        ("gemma4/openvino_text_embeddings_per_layer_model.xml", "no-lm-head"),
        ("gemma4/openvino_vision_embeddings_model.xml", "no-embedding"),
        ("qwen2_vl/openvino_text_embeddings_model.xml", "no-lm-head"),
    ],
)
def test_what_is_no_language_model_is_refused(shared: Path, file: str, code: str) -> None:
    with pytest.raises(StructureError) as caught:
        decoder.read_decoder(ir.read_model(shared / "zoo" / file))
    assert [reason.code for reason in caught.value.reasons] == [code]


@pytest.mark.parametrize("name", support.DECODERS)
def test_names_play_no_part(zoo: Zoo, name: str) -> None:
    model = read(zoo, name)
    before = decoder.read_decoder(model)
    nodes = before.graph.nodes
    shuffled = np.random.default_rng(0).permutation(before.graph.names)
    for node, friendly in zip(nodes, shuffled, strict=True):
        node.set_friendly_name(str(friendly))
    after = decoder.read_decoder(model)

    def boundaries(found: decoder.Decoder) -> list[tuple[int, int]]:
        outputs = [output for layer in found.layers for output in (layer.entry, layer.output, *layer.residuals)]
        return [(found.graph.index(o.get_node()), o.get_index()) for o in (*outputs, found.lm_head.hidden)]

    assert boundaries(after) == boundaries(before)


@pytest.mark.parametrize("name", ["qwen3", "gemma4", "qwen3_5_text", "mamba"])
def test_further_outputs_do_not_disturb(zoo: Zoo, name: str) -> None:
    model = read(zoo, name)
    before = decoder.read_decoder(model)
    text = decoder.annotation_text(before)
    tapped = [before.layers[1].output, before.layers[0].residuals[0], before.lm_head.hidden]
    model.add_results([ir.make_result(output, f"tap_{i}") for i, output in enumerate(tapped)])
    assert decoder.annotation_text(decoder.read_decoder(model)) == text


KINDS = {
    "lfm2": ["convolution", "attention"] * 2,
    "mamba": ["state_space"] * 4,
    "qwen3_5_text": ["linear_attention", "attention"] * 2,
    "qwen3_next": ["linear_attention", "attention"] * 2,
}


@pytest.mark.parametrize("name", support.DECODERS)
def test_kinds_and_states_of_layers(zoo: Zoo, name: str) -> None:
    model = read(zoo, name)
    layers = decoder.read_decoder(model).layers
    assert [layer.kind for layer in layers] == KINDS.get(name, ["attention"] * len(layers))
    owned = [state for layer in layers for state in layer.states]
    assert sorted(owned) == sorted(variable.info.variable_id for variable in model.get_variables())
    assert all(layer.attention for layer in layers)


EMBEDDING_SCALE = {"gemma3_text": 8.0}
TOKENS_BY_VALUE = ("gemma4", "qwen2_vl")


@pytest.mark.parametrize("name", support.DECODERS)
def test_embedding_and_lm_head(zoo: Zoo, name: str) -> None:
    found = decoder.read_decoder(read(zoo, name))
    head = found.lm_head
    assert (head.vocab_size, head.width, head.transpose_b, head.bias, head.post_ops[:2]) == (2048, 64, True, None, ())
    weight = ir.weight_root(head.weight)
    assert weight is not None
    assert weight.format == ("f32" if name in FP32 else "u8" if name in COMPRESSED else "f16")
    if name in TOKENS_BY_VALUE:
        assert found.embedding is None
        assert "inputs_embeds" in found.source.get_names()
    else:
        assert found.embedding is not None
        assert (found.embedding.vocab_size, found.embedding.width) == (2048, 64)
        assert found.embedding.scale == EMBEDDING_SCALE.get(name)
        assert ir.weight_root(found.embedding.table) is not None


@pytest.mark.parametrize(("package", "scale"), [("gemma4", 8.0), ("qwen2_vl", None)])
def test_embedding_of_a_vision_language_package(zoo: Zoo, package: str, scale: float | None) -> None:
    found = decoder.read_embedding(ir.read_model(zoo(package) / "openvino_text_embeddings_model.xml"))
    assert (found.vocab_size, found.width, found.scale) == (2048, 64, scale)


PAGEABLE = tuple(name for name in support.DECODERS if name != "mamba")


@pytest.mark.parametrize("name", PAGEABLE)
def test_paged_forms_have_the_same_layers(zoo: Zoo, name: str) -> None:
    model = read(zoo, name)
    before = decoder.read_decoder(model)
    text, kinds = decoder.annotation_text(before), [layer.kind for layer in before.layers]
    convert_to_paged(model, {})
    after = decoder.read_decoder(model)
    assert decoder.annotation_text(after) == text
    assert [layer.kind for layer in after.layers] == kinds
    assert all(layer.states == () for layer in after.layers)
