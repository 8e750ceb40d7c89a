"""Layers, weights and states of drafts and checkpoints, with the numbers their configs and exporters imply."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import ovgraft
from ovgraft import drafts, inspection
from ovgraft.drafts.building.draft import Form
from ovgraft.inspection import ModelInfo, Request
from ovgraft.inspection.layout import UNICODE, plain
from ovgraft.inspection.tree import CheckpointInfo
from ovgraft.inspection.tree_layers import LayerDetails
from ovgraft.pipeline import Pipeline, preset
from tests import models
from tests.decoder.nets import HIDDEN, Net
from tests.drafts import checkpoints
from tests.inspection.resident import resident_weights
from tests.support import DFLASH_DRAFTS

EVERYTHING = Request(layers=True, weights=True, states=True)
HEADS = (4, 2, 16, 16)
FORMATS = {"qwen3_dflash_draft-int8": "u8", "qwen3_dflash_draft-int4": "i4", "qwen3_dflash_draft_sliding": "f16"}
# q, k, v, o, gate, up, down of a zoo draft, in elements: hidden 64, 4 and 2 heads of 16, MLP 128
MATRICES = 64 * 64 * 2 + 64 * 32 * 2 + 64 * 128 * 3
BITS = {"f32": 32, "f16": 16, "u8": 8, "i4": 4}


def details(info: ModelInfo) -> list[LayerDetails]:
    found = [layer.details for layer in info.layers]
    assert all(found)
    return [each for each in found if each is not None]


def heads(info: ModelInfo) -> list[tuple[int | None, ...]]:
    found = [attention for each in details(info) for attention in each.attention]
    return [(each.heads, each.kv_heads, each.head_size, each.value_head_size) for each in found]


def sees(info: ModelInfo) -> list[tuple[int | None, bool | None]]:
    return [(attention.window, attention.bidirectional) for each in details(info) for attention in each.attention]


def parts(info: ModelInfo | CheckpointInfo) -> dict[str, int]:
    return {part.part if part.layer is None else f"layer {part.layer}": part.bytes for part in info.parts}


def collected(model: ov.Model) -> ModelInfo:
    return inspection.collect_model(model, "m", EVERYTHING)


@pytest.mark.parametrize("name", DFLASH_DRAFTS)
def test_dflash_drafts_of_the_zoo(zoo: Callable[[str], Path], name: str) -> None:
    (package,) = inspection.inspect(zoo(name), EVERYTHING).packages
    (info,) = package.models
    assert (info.kind, info.structure_error, info.width) == ("dflash draft", (), 64)
    assert heads(info) == [HEADS, HEADS]
    assert sees(info) == [(16 if "sliding" in name else None, True), (None, True)]
    assert [each.inputs for each in details(info)] == [("inputs_embeds", "hidden_states"), ("hidden_states",)]
    assert [each.boundary.shape for each in details(info)] == ["[?,?,64]"] * 2
    assert [(state.layer, state.readers) for state in info.states] == [(0, (0,))] * 2 + [(1, (1,))] * 2
    stored = FORMATS.get(name, "f32")
    found = parts(info)
    for i, each in enumerate(details(info)):
        assert each.weights[0].element_type == stored
        assert each.weights[0].bytes >= MATRICES * BITS[stored] // 8
        assert MATRICES * BITS[stored] // 8 <= each.bytes == found[f"layer {i}"] < MATRICES * BITS[stored] // 8 + 14000
    assert info.fc is not None
    assert (info.fc.in_width, info.fc.out_width, info.fc.format, info.fc.bias) == (192, 64, stored, False)
    assert found["fc"] == info.fc.bytes >= 192 * 64 * BITS[stored] // 8
    assert set(found) == {"layer 0", "layer 1", "fc", "shared"}
    assert sum(found.values()) == sum(entry.bytes for entry in info.weights)
    assert found["shared"] < 1000


def test_the_eagle3_draft_of_the_zoo(zoo: Callable[[str], Path]) -> None:
    (package,) = inspection.inspect(zoo("qwen3_12l_eagle3_draft"), EVERYTHING).packages
    (info,) = package.models
    assert (info.kind, info.structure_error, info.width) == ("eagle3 draft", (), 64)
    (layer,) = details(info)
    assert heads(info) == [HEADS]
    assert sees(info) == [(None, None)]
    assert layer.inputs == ("hidden_states", "input_ids")
    assert [state.layer for state in info.states] == [0, 0]
    # q, k and v read embedding and state side by side; three norms enter the layer, of 64 each
    elements = 128 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 128 + 3 * 64
    assert 2 * elements <= layer.bytes < 2 * elements + 1000
    assert info.fc is not None
    assert (info.fc.in_width, info.fc.out_width, info.fc.format) == (192, 64, "f16")
    found = parts(info)
    assert (found["fc"], found["embedding"], found["lm_head"]) == (2 * 192 * 64, 2 * 2048 * 64, 2 * 512 * 64)
    assert 4096 <= found["shared"] < 5000  # d2t, 512 x i64


CHECKPOINTS = {
    "deepspec_gated": ({"embedding", "lm_head", "markov head", "confidence head"}, (None, True)),
    "deepspec_headless": ({"embedding", "lm_head"}, (None, True)),
    "deepspec_rnn": ({"embedding", "lm_head", "markov head", "confidence head"}, (None, True)),
    "deepspec_vanilla": ({"embedding", "lm_head", "markov head", "confidence head"}, (None, True)),
    "minicpm_pruned": ({"embedding", "lm_head", "markov head", "confidence head", "vocabulary map"}, (None, True)),
    "modelopt_flat": ({"markov head", "confidence head"}, (None, True)),
    "qwen3_dflash_draft": (set(), (None, True)),
    "speculators_dflash": ({"embedding", "lm_head", "vocabulary map"}, (None, True)),
    "speculators_dspark": (
        {"embedding", "lm_head", "markov head", "confidence head", "vocabulary map"},
        (None, True),
    ),
    "zlab_dflash2": ({"candidate selector"}, (64, False)),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_and_what_is_built_from_them(shared: Path, name: str) -> None:
    folder = shared / "zoo" / "checkpoints" / name
    (package,) = inspection.inspect(folder).packages
    stored = package.checkpoint
    assert stored is not None
    others, seen = CHECKPOINTS[name]
    found = parts(stored)
    assert set(found) - {"layer 0", "layer 1", "fc", "shared"} == others
    convolved = "dflash2" in name
    kind = "attention+convolution" if convolved else "attention"
    for layer in stored.layers:
        assert (layer.heads, layer.kv_heads, layer.head_size, layer.value_head_size) == HEADS
        assert (layer.kind, layer.window, layer.bidirectional) == (kind, *seen)
        assert layer.bytes == found[f"layer {layer.index}"]
    item = 4 if name == "qwen3_dflash_draft" else 2
    assert found["fc"] == 192 * 64 * item
    # what a layer holds beside its matrices: two norms of 64 and two of 16, and DFlash-2's kernels
    kernels = 2 * (2 * 2 * 64 + 2 * 2 * 4 * 64) if convolved else 0
    assert found["layer 0"] == (MATRICES + 2 * 64 + 2 * 16 + kernels) * item
    assert found["shared"] == 2 * 64 * item
    checkpoint = drafts.read_checkpoint(folder)
    assert sum(found.values()) == sum(checkpoint.weights.info(tensor).nbytes for tensor in checkpoint.weights)
    for form in ("sdpa", "per-row"):
        _same_layers(collected(drafts.build_draft(checkpoint, form)), stored, form)


def _same_layers(built: ModelInfo, stored: CheckpointInfo, form: Form) -> None:
    """The built draft shows the checkpoint's layers, and little more than its tensors in each of them."""
    assert built.structure_error == ()
    assert [layer.kind for layer in built.layers] == [layer.kind for layer in stored.layers]
    assert heads(built) == [HEADS] * 2
    assert sees(built) == [(layer.window, layer.bidirectional) for layer in stored.layers]
    assert [state.layer for state in built.states] == [0, 0, 1, 1]
    source = "input_ids" if built.embedding is not None else "inputs_embeds"
    assert [each.inputs for each in details(built)] == [(source, "hidden_states"), ("hidden_states",)]
    there, kept = parts(built), parts(stored)
    for part in ("layer 0", "layer 1"):
        assert kept[part] <= there[part] < kept[part] + 2500, form
    for part in ("fc", "embedding", "lm_head"):
        assert there.get(part) == kept.get(part), part
    assert there["shared"] < 9000  # d2t, rotary tables, the two norms


def test_a_checkpoint_says_the_same_with_and_without_being_asked(tmp_path: Path) -> None:
    config, tensors = checkpoints.deepspec_gemma4()
    folder = checkpoints.write_checkpoint(tmp_path / "c", config, tensors)
    assert inspection.inspect(folder) == inspection.inspect(folder, EVERYTHING)
    (package,) = inspection.inspect(folder).packages
    assert package.checkpoint is not None
    assert [(layer.heads, layer.kv_heads, layer.head_size) for layer in package.checkpoint.layers] == [(3, 1, 8)] * 2
    assert [entry.element_type for entry in package.checkpoint.weights] == ["bf16"]
    json.dumps(inspection.inspect(folder).to_dict())


@pytest.mark.parametrize(
    ("text", "stateful"),
    [
        (preset("dflash").text, True),
        (f"{preset('dflash').text},fold-draft-argmax{{keep-logits=false}}", True),
        ("per-row-draft", True),
        (preset("dflash-paged").text, False),
    ],
)
def test_grafted_drafts(tmp_path: Path, text: str, stateful: bool) -> None:
    pair = {"target": models.tiny_decoder(layers=4), "draft": models.tiny_dflash_draft(layers=2)}
    folders = {role: models.write_package(model, tmp_path / role) for role, model in pair.items()}
    before = collected(models.tiny_dflash_draft(layers=2))
    graft = ovgraft.load(**folders)
    Pipeline(text).run(graft)
    assert graft.draft is not None
    info = collected(graft.draft.model)
    assert heads(info) == heads(before) == [(4, 2, 8, 8)] * 2
    assert sees(info) == [(None, True)] * 2
    for now, then in zip(details(info), details(before), strict=True):
        assert abs(now.bytes - then.bytes) < 1000
    if text != "per-row-draft":
        assert [each.inputs for each in details(info)] == [("input_ids", "hidden_states"), ("hidden_states",)]
        assert info.fc is None
        assert {"embedding", "lm_head"} < set(parts(info))
    if stateful:
        assert [state.layer for state in info.states] == [0, 0, 1, 1]
    else:
        assert info.paging is not None
        tables = {table.names[0]: table.layer for table in info.paging.tables}
        assert tables == {"key_cache.0": 0, "value_cache.0": 0, "key_cache.1": 1, "value_cache.1": 1}


def test_layers_that_do_not_show_are_one_reason() -> None:
    net = Net()
    states = net.input("hidden_states", [-1, -1, HIDDEN])
    model = net.finish(net.norm(ov.opset13.add(net.embed(), states)))
    model.set_rt_info("True", ["eagle3_mode"])
    info = collected(model)
    assert info.kind == "eagle3 draft"
    assert (info.layers, [reason.code for reason in info.structure_error]) == ((), ["no-layers", "no-layers"])


def test_texts(shared: Path, tmp_path: Path) -> None:
    def text(path: Path, *sections: str) -> str:
        return plain(inspection.render_text(inspection.inspect(path, EVERYTHING), UNICODE, sections=sections))

    draft = models.write_package(models.tiny_dflash_draft(layers=2), tmp_path / "d")
    summary = text(draft)
    assert "  2 layers · hidden 32 · " in summary
    assert "\n     out        Slice " in summary
    assert "\n  fc  32 × 96  f32  12.0 KiB  " in summary
    assert "  0  attention  4/2 × 8                 both ways  hidden_states  f32 " in text(draft, "layers")
    assert "\n  fc  " in text(draft, "weights")
    assert "\n      1  past_key_values.1." in text(draft, "states")
    decoder = models.write_package(models.tiny_decoder(), tmp_path / "t")
    assert "from the side" not in text(decoder, "layers")
    assert "block" not in text(decoder, "layers")
    stored = text(shared / "zoo" / "checkpoints" / "zlab_dflash2", "layers", "weights")
    assert "  1  attention+convolution  4/2 × 16      64  causal  bf16     77.3 KiB\n" in stored
    assert "\n  candidate selector  130.0 KiB" in stored


def test_no_weight_byte_of_a_draft_is_read(shared: Path) -> None:
    """Its masks hang on the lengths of activations, and are run; the matrices that make these stay on disk."""
    folder = shared / "models" / "smollm2-135m-dflash-ir"
    assert 0 < resident_weights(folder, "layers", "weights", "states") < 4096  # of 23 MiB


def test_a_mask_that_is_not_understood_is_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*nodes: object, **options: object) -> None:
        raise RuntimeError("Exception from somewhere:\nno such op")

    monkeypatch.setattr("ovgraft.drafts.row_attention.mask_functions", fail)
    folder = models.write_package(models.tiny_dflash_draft(), tmp_path / "d")
    found = inspection.inspect(folder, EVERYTHING)
    assert sees(found.packages[0].models[0]) == [(None, None)] * 2
    text = plain(inspection.render_text(found, UNICODE, sections=("layers",)))
    assert "  0  attention  4/2 × 8                 ?      hidden_states  f32 " in text


def test_numbers_stay_numbers_of_python() -> None:
    """A numpy number would break the JSON form."""
    info = collected(models.tiny_dflash_draft())
    found = [attention for each in details(info) for attention in each.attention]
    assert not any(isinstance(value, np.generic) for each in found for value in (each.window, each.bidirectional))
    json.dumps([sees(info), heads(info)])
