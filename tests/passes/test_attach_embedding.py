"""attach-embedding: the draft behind ids equals the draft behind the target's rows, whatever way they are stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
from numpy.typing import NDArray

from ovgraft import drafts, ir
from ovgraft.drafts.contract import WEIGHT_DIGEST_KEY, Key
from ovgraft.errors import CheckpointError, OvgraftError, PreconditionError
from ovgraft.graft import Graft, Package
from ovgraft.passes.attach_embedding import AttachEmbedding
from tests import models, pairs, support
from tests.blocks import WeightFormat
from tests.drafts import checkpoints

FORMATS: tuple[WeightFormat, ...] = ("f32", "f16", "bf16", "int8")


def draft_of(graft: Graft) -> ov.Model:
    assert graft.draft is not None
    return graft.draft.model


def tiny_draft(tmp_path: Path, *, hidden: int = 32, rt_info: dict[str, str] | None = None, **config: Any) -> Path:
    model = models.tiny_dflash_draft(hidden=hidden)
    for key, value in (rt_info or {}).items():
        model.set_rt_info(value, ["dflash", key])
    return models.write_package(model, tmp_path / "draft", config=config)


def looked_up(model: ov.Model, gather: str, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Rows the target's own lookup gives, cut out of its graph."""
    cut = model.clone()
    result = ops.result(pairs.node(cut, gather).output(0))
    result.output(0).set_names({"rows"})
    parameter = next(p for p in cut.get_parameters() if p.output(0).names & {"input_ids", "input"})
    alone = ov.Model([result], [parameter])
    return support.infer(alone, {parameter.output(0).any_name: ids})["rows"]


def check(graft: Graft, embeddings: ov.Model, gather: str, *, scale: float = 1, vocabulary: int = 64) -> None:
    """The attached draft on ids equals the plain one on the target's bare rows times ``scale``."""
    plain = draft_of(graft).clone()
    rows = [looked_up(embeddings, gather, pairs.tokens(5, seed, vocabulary)) * np.float32(scale) for seed in (1, 2)]
    width = plain.input("hidden_states").partial_shape[2].get_length()
    contexts = [pairs.rows(7, width), pairs.rows(3, width, 1)]
    expected = pairs.run_draft(plain, list(zip(contexts, rows, strict=True)))
    pairs.run_passes(graft, AttachEmbedding())
    ids = [pairs.tokens(5, seed, vocabulary) for seed in (1, 2)]
    found = pairs.run_draft(draft_of(graft), list(zip(contexts, ids, strict=True)))
    for want, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got["last_hidden_state"], want["last_hidden_state"], rtol=0, atol=1e-5)


GATHER = "__module.model.embed_tokens/aten::embedding/Gather"


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("weights", FORMATS)
def test_own_targets(tmp_path: Path, weights: WeightFormat, tied: bool) -> None:
    target = models.write_package(models.tiny_decoder(weights=weights, tied=tied), tmp_path / "target")
    graft = pairs.open_pair(target, tiny_draft(tmp_path))
    check(graft, Package(target).model, GATHER)


@pytest.mark.parametrize("scale", [None, 3.0])
def test_scale_of_the_target_is_not_inherited(tmp_path: Path, scale: float | None) -> None:
    target = models.write_package(models.tiny_decoder(embedding_scale=5.5), tmp_path / "target")
    rt_info = {} if scale is None else {"input_embedding_scale": str(scale)}
    graft = pairs.open_pair(target, tiny_draft(tmp_path, rt_info=rt_info))
    check(graft, Package(target).model, GATHER, scale=scale or 1)


def test_scale_is_told_and_applied_once(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(embedding_scale=5.5), tmp_path / "target")
    graft = pairs.open_pair(target, tiny_draft(tmp_path, dflash_config={"input_embedding_scale": 3.0}))
    (context,) = pairs.run_passes(graft, AttachEmbedding())
    assert (
        "multiplies its embedding rows by 5.5; the draft takes bare rows times input_embedding_scale 3"
        in (context.remarks[0])
    )
    model = draft_of(graft)
    assert ir.get_text(model, Key.INPUT_EMBEDDING_SCALE) == "1"
    record = drafts.read_record(model, Key.APPLIED)
    assert record is not None
    assert record["embedding"]["input_embedding_scale"] == 3.0
    assert graft.draft is not None
    assert drafts.read_draft(graft.draft).input_embedding_scale == 1  # rt_info outranks config.json, which still says 3


def test_ports(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(), tmp_path / "target")
    graft = pairs.open_pair(target, tiny_draft(tmp_path))
    (context,) = pairs.run_passes(graft, AttachEmbedding())
    model = draft_of(graft)
    names = {port.any_name for port in model.inputs}
    assert names == {"input_ids", "hidden_states", "position_ids", "attention_mask", "beam_idx"}
    ids = model.input("input_ids")
    assert (ids.partial_shape, ids.element_type) == (ov.PartialShape([-1, -1]), ov.Type.i64)
    assert ids.get_node().get_friendly_name() == "input_ids"
    assert {edit.model for edit in context.edits} == {"draft"}


@pytest.mark.parametrize("weights", FORMATS)
def test_table_stays_byte_equal(tmp_path: Path, weights: WeightFormat) -> None:
    target = models.write_package(models.tiny_decoder(weights=weights), tmp_path / "target")
    graft = pairs.open_pair(target, tiny_draft(tmp_path))
    before = {k: v for k, v in pairs.weights(graft.target.model).items() if "embed_tokens" in k}
    pairs.run_passes(graft, AttachEmbedding())
    attached = {k: v for k, v in pairs.weights(draft_of(graft)).items() if "embed_tokens" in k}
    assert attached == before
    carried = [each for each in draft_of(graft).get_ordered_ops() if ir.get_user_data(each, WEIGHT_DIGEST_KEY)]
    assert len(carried) == 1
    assert all("WeightlessCacheAttribute_0" not in each.get_rt_info().keys() for each in carried)  # noqa: SIM118
    assert drafts.weight_digest(carried[0]) is not None


def test_vision_language_package(tmp_path: Path) -> None:
    table = models.tiny_text_embeddings(weights="int8")
    target = models.write_package(
        models.tiny_decoder(inputs_embeds=True),
        tmp_path / "target",
        name="openvino_language_model",
        others={"openvino_text_embeddings_model": table},
    )
    check(pairs.open_pair(target, tiny_draft(tmp_path)), table, "aten::embedding/Gather")


def test_vision_language_package_without_its_table(tmp_path: Path) -> None:
    model = models.tiny_decoder(inputs_embeds=True)
    target = models.write_package(model, tmp_path / "target", name="openvino_language_model")
    with pytest.raises(PreconditionError, match=r"or openvino_text_embeddings_model\.xml beside it"):
        pairs.run_passes(pairs.open_pair(target, tiny_draft(tmp_path)), AttachEmbedding())


def test_eagle3_table_is_replaced(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(weights="int8"), tmp_path / "target")
    model = models.tiny_eagle3_draft()
    graft = pairs.open_pair(target, models.write_package(model, tmp_path / "draft", config={}))
    tokens, states = pairs.tokens(5, vocabulary=64), pairs.rows(5, 96)
    witness = draft_of(graft).clone()
    rows = looked_up(graft.target.model, GATHER, np.arange(64)[None])[0]
    gather = pairs.node(witness, GATHER)
    gather.input(0).replace_source_output(ops.constant(rows).output(0))
    pairs.run_passes(graft, AttachEmbedding())
    assert {port.any_name for port in draft_of(graft).inputs} == {port.any_name for port in witness.inputs}
    expected = pairs.run_eagle3(witness, [(tokens, states)])[0]["logits"]
    found = pairs.run_eagle3(draft_of(graft), [(tokens, states)])[0]["logits"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_twice(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(), tmp_path / "target")
    graft = pairs.open_pair(target, tiny_draft(tmp_path))
    pairs.run_passes(graft, AttachEmbedding())
    before = draft_of(graft).clone()
    (context,) = pairs.run_passes(graft, AttachEmbedding())
    assert not pairs.changed(context)
    assert ir.same_structure(draft_of(graft), before) is None


def test_a_table_of_its_own_stays(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(), tmp_path / "target")
    graft = pairs.open_pair(target, tiny_draft(tmp_path))
    pairs.run_passes(graft, AttachEmbedding())
    own = draft_of(graft).clone()
    ir.delete(own, Key.APPLIED)
    other = pairs.open_pair(target, models.write_package(own, tmp_path / "own", config={}))
    (context,) = pairs.run_passes(other, AttachEmbedding())
    assert context.remarks == ["unchanged: the draft has its own embedding"]
    assert not pairs.changed(context)
    assert ir.same_structure(draft_of(other), own) is None


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("name", ["mask_embedding.safetensors", "mask_embedding.npz"])
def test_a_mask_embedding_beside_the_draft(tmp_path: Path, weights: WeightFormat, name: str) -> None:
    """The mask token's row is the vector, times the draft's scale like any other row."""
    target = models.write_package(models.tiny_decoder(weights=weights), tmp_path / "target")
    folder = tiny_draft(tmp_path, rt_info={"input_embedding_scale": "2"})
    vector = np.linspace(-1, 1, 32, dtype=np.float32)
    write = checkpoints.write_npz if name.endswith("npz") else checkpoints.write_safetensors
    write(folder / name, {"mask_embedding": vector})
    graft = pairs.open_pair(target, folder)
    plain, ids = draft_of(graft).clone(), pairs.tokens(5, vocabulary=64)
    mask = 3
    ids[0, 2:4] = mask
    rows = looked_up(graft.target.model, GATHER, ids)
    rows[0, 2:4] = vector
    states = pairs.rows(7, 96)
    (expected,) = pairs.run_draft(plain, [(states, rows * np.float32(2))])
    (context,) = pairs.run_passes(graft, AttachEmbedding())
    assert any("own mask embedding stands for token 3" in edit.text for edit in context.edits)
    again = pairs.open_pair(target, folder)
    pairs.run_passes(again, AttachEmbedding())
    for number, each in enumerate((graft, again)):
        ov.save_model(draft_of(each), tmp_path / f"{number}.xml", compress_to_fp16=False)
    assert (tmp_path / "0.xml").read_bytes() == (tmp_path / "1.xml").read_bytes()
    (found,) = pairs.run_draft(draft_of(graft), [(states, ids)])
    np.testing.assert_allclose(found["last_hidden_state"], expected["last_hidden_state"], rtol=0, atol=1e-5)


def test_a_mask_embedding_that_comes_or_changes_later_is_not_called_attached(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(), tmp_path / "target")
    graft = pairs.open_pair(target, tiny_draft(tmp_path))
    pairs.run_passes(graft, AttachEmbedding())
    file = tmp_path / "draft" / "mask_embedding.safetensors"
    vector = np.linspace(-1, 1, 32, dtype=np.float32)
    checkpoints.write_safetensors(file, {"mask_embedding": vector})
    with pytest.raises(PreconditionError, match="attached without this mask embedding"):
        pairs.run_passes(graft, AttachEmbedding())
    again = pairs.open_pair(target, tmp_path / "draft")
    pairs.run_passes(again, AttachEmbedding())
    (context,) = pairs.run_passes(again, AttachEmbedding())
    assert not context.edits
    checkpoints.write_safetensors(file, {"mask_embedding": 2 * vector})
    with pytest.raises(PreconditionError, match="attached without this mask embedding"):
        pairs.run_passes(again, AttachEmbedding())


@pytest.mark.parametrize("weights", FORMATS)
def test_a_mask_row_that_was_never_trained_is_told(tmp_path: Path, weights: WeightFormat) -> None:
    table = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    table[3] *= 1e-5
    decoder_model = models.tiny_decoder(weights=weights, given={"self.model.embed_tokens.weight": table})
    target = models.write_package(decoder_model, tmp_path / "target")
    (context,) = pairs.run_passes(pairs.open_pair(target, tiny_draft(tmp_path)), AttachEmbedding())
    assert any("mask token 3 is near zero" in remark for remark in context.remarks)
    other = models.write_package(models.tiny_decoder(weights=weights), tmp_path / "other")
    (context,) = pairs.run_passes(pairs.open_pair(other, tmp_path / "draft"), AttachEmbedding())
    assert not context.remarks


class TestRefused:
    def refused(self, target: ov.Model, draft: Path, tmp_path: Path, words: str) -> None:
        graft = pairs.open_pair(models.write_package(target, tmp_path / "target"), draft)
        before = draft_of(graft).clone()
        with pytest.raises(OvgraftError, match=words):
            pairs.run_passes(graft, AttachEmbedding())
        assert ir.same_structure(draft_of(graft), before) is None

    def test_width(self, tmp_path: Path) -> None:
        words = "expected rows of 64, found 32"
        self.refused(models.tiny_decoder(), tiny_draft(tmp_path, hidden=64), tmp_path, words)

    def test_mask_token_without_a_row(self, tmp_path: Path) -> None:
        draft = tiny_draft(tmp_path, rt_info={"mask_token_id": "64"})
        self.refused(models.tiny_decoder(), draft, tmp_path, "expected an id below 64, found 64")

    def test_vocabulary(self, tmp_path: Path) -> None:
        draft = tiny_draft(tmp_path, vocab_size=100)
        self.refused(models.tiny_decoder(), draft, tmp_path, "another vocabulary: expected 64, found 100")

    def test_no_embedding(self, tmp_path: Path) -> None:
        states = ops.parameter([-1, -1, 32], ov.Type.f32, "x")
        states.output(0).set_names({"x"})
        result = ops.result(ops.matmul(states, ops.constant(np.ones((64, 32), np.float32)), False, True))
        result.output(0).set_names({"logits"})
        self.refused(ov.Model([result], [states]), tiny_draft(tmp_path), tmp_path, "embedding")

    @pytest.mark.parametrize("shape", [(31,), (2, 32)])
    def test_mask_embedding_of_another_width(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        folder = tiny_draft(tmp_path)
        checkpoints.write_safetensors(
            folder / "mask_embedding.safetensors", {"mask_embedding": np.zeros(shape, np.float32)}
        )
        target = models.write_package(models.tiny_decoder(), tmp_path / "target")
        with pytest.raises(CheckpointError, match="mask embedding does not fit the draft"):
            pairs.run_passes(pairs.open_pair(target, folder), AttachEmbedding())

    def test_another_target(self, tmp_path: Path) -> None:
        target = models.write_package(models.tiny_decoder(), tmp_path / "target")
        graft = pairs.open_pair(target, tiny_draft(tmp_path))
        pairs.run_passes(graft, AttachEmbedding())
        graft.target = Package(models.write_package(models.tiny_decoder(seed=7), tmp_path / "other"))
        with pytest.raises(PreconditionError, match="another embedding is attached"):
            pairs.run_passes(graft, AttachEmbedding())


@pytest.mark.parametrize(
    ("target", "draft"),
    [("qwen3", ""), ("qwen3-int8", "-int8"), ("qwen3-int4_sym_g32", "-int4"), ("qwen3", "_sliding")],
)
def test_zoo_pairs(zoo: Callable[[str], Path], target: str, draft: str) -> None:
    graft = pairs.open_pair(zoo(target), zoo(f"qwen3_dflash_draft{draft}"))
    check(graft, Package(zoo(target)).model, GATHER, vocabulary=2048)


@pytest.mark.parametrize(
    ("target", "gather"),
    [
        ("gemma3_text", GATHER),
        ("gpt2", "__module.transformer.wte/aten::embedding/Gather"),
        ("qwen2_vl", "aten::embedding/Gather"),
        ("gemma4", "__module.model.model.language_model.embed_tokens/aten::embedding/Gather"),
    ],
)
def test_zoo_targets_with_a_small_draft(zoo: Callable[[str], Path], tmp_path: Path, target: str, gather: str) -> None:
    draft = tiny_draft(tmp_path, hidden=64, rt_info={"input_embedding_scale": "2.5"})
    graft = pairs.open_pair(zoo(target), draft)
    fresh = Package(zoo(target))
    table = fresh.get("openvino_text_embeddings_model") or fresh.model
    check(graft, table, gather, scale=2.5, vocabulary=2048)
