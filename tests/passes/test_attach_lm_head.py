"""attach-lm-head: the target's output layer on the draft's states, then the draft's own multiplier and soft cap."""

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
from ovgraft.drafts.contract import Key
from ovgraft.errors import PreconditionError
from ovgraft.graft import Graft, Package
from ovgraft.passbase import Context
from ovgraft.passes.attach_embedding import AttachEmbedding
from ovgraft.passes.attach_lm_head import AttachLmHead
from ovgraft.passes.expose_hidden_states import ExposeHiddenStates
from ovgraft.passes.move_fc import MoveFc
from tests import models, pairs, support
from tests.blocks import WeightFormat

FORMATS: tuple[WeightFormat, ...] = ("f32", "f16", "bf16", "int8")
HEAD = "__module.lm_head/aten::linear/MatMul"


def draft_of(graft: Graft) -> ov.Model:
    assert graft.draft is not None
    return graft.draft.model


def tiny_draft(tmp_path: Path, *, hidden: int = 32, rt_info: dict[str, str] | None = None, **config: Any) -> Path:
    model = models.tiny_dflash_draft(hidden=hidden)
    for key, value in (rt_info or {}).items():
        model.set_rt_info(value, ["dflash", key])
    return models.write_package(model, tmp_path / "draft", config=config)


def tiny_graft(tmp_path: Path, *, rt_info: dict[str, str] | None = None, **decoder: Any) -> Graft:
    target = models.write_package(models.tiny_decoder(**decoder), tmp_path / "target")
    return pairs.open_pair(target, tiny_draft(tmp_path, rt_info=rt_info))


def head(model: ov.Model, matmul: str, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
    """The target's own product on other states, cut out of its graph; a bias behind it included."""
    cut = model.clone()
    product = pairs.node(cut, matmul)
    states = ops.parameter([-1, -1, hidden.shape[-1]], ov.Type.f32, "states")
    states.output(0).set_names({"states"})
    product.input(0).replace_source_output(states.output(0))
    last = product
    for reader in product.output(0).get_target_inputs():
        if reader.get_node().get_type_name() == "Add":
            last = reader.get_node()
    result = ops.result(last.output(0))
    result.output(0).set_names({"product"})
    return support.infer(ov.Model([result], [states]), {"states": hidden})["product"]


def check(graft: Graft, matmul: str = HEAD, *, multiplier: float = 1, cap: float = 0) -> list[Context]:
    """The attached draft equals the plain one with the target's head applied outside, with past and without."""
    plain, target = draft_of(graft).clone(), graft.target.model
    width = plain.input("hidden_states").partial_shape[2].get_length()
    hidden = plain.input("inputs_embeds").partial_shape[2].get_length()
    calls = [(pairs.rows(6, width), pairs.rows(4, hidden, 1)), (pairs.rows(2, width, 2), pairs.rows(4, hidden, 3))]
    states = [call["last_hidden_state"] for call in pairs.run_draft(plain, calls)]
    expected = [multiplier * head(target, matmul, each) for each in states]
    if cap:
        expected = [np.tanh(each / cap) * cap for each in expected]
    contexts = pairs.run_passes(graft, AttachLmHead(keep_hidden=True))
    found = pairs.run_draft(draft_of(graft), calls)
    for want, rows, got in zip(expected, states, found, strict=True):
        assert got["logits"].shape == (1, 3, want.shape[-1])
        np.testing.assert_allclose(got["logits"], want, rtol=0, atol=1e-5 * max(1, np.abs(want).max()))
        np.testing.assert_allclose(got["last_hidden_state"], rows, rtol=0, atol=1e-5)
    return contexts


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("weights", FORMATS)
def test_own_targets(tmp_path: Path, weights: WeightFormat, tied: bool) -> None:
    check(tiny_graft(tmp_path, weights=weights, tied=tied))


@pytest.mark.parametrize(("multiplier", "cap"), [(0.25, 0.0), (1.0, 3.0), (0.5, 2.0)])
def test_multiplier_then_soft_cap(tmp_path: Path, multiplier: float, cap: float) -> None:
    rt_info = {"output_multiplier": str(multiplier), "final_logit_softcapping": str(cap)}
    graft = tiny_graft(tmp_path, rt_info=rt_info)
    check(graft, multiplier=multiplier, cap=cap)
    model = draft_of(graft)
    assert ir.get_text(model, Key.OUTPUT_MULTIPLIER) == "1"
    assert ir.get_text(model, Key.FINAL_LOGIT_SOFTCAPPING) == "0"
    record = drafts.read_record(model, Key.APPLIED)
    assert record is not None
    assert record["lm_head"]["output_multiplier"] == multiplier
    assert record["lm_head"]["final_logit_softcapping"] == cap


def test_soft_cap_of_the_target_is_not_inherited(tmp_path: Path) -> None:
    graft = tiny_graft(tmp_path, softcap=2.0)
    (context,) = pairs.run_passes(graft, AttachLmHead())
    assert "the target changes its logits (Divide, Tanh, Multiply)" in context.remarks[0]
    again = pairs.open_pair(graft.target.path, graft.draft.path if graft.draft else None)
    check(again)


def with_bias(model: ov.Model) -> ov.Model:
    """The model with an output layer ``x W + b`` whose weights lie the other way round."""
    product = pairs.node(model, HEAD)
    weight = ops.constant(np.ascontiguousarray(product.input_value(1).get_node().data.T))
    weight.set_friendly_name("head.weight")
    turned = ops.matmul(product.input_value(0), weight, False, False)
    turned.set_friendly_name("head")
    bias = ops.constant(np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 1, 64))
    bias.set_friendly_name("head.bias")
    added = ops.add(turned, bias)
    for reader in product.output(0).get_target_inputs():
        reader.replace_source_output(added.output(0))
    model.get_results()[0].output(0).set_names({"logits"})
    model.validate_nodes_and_infer_types()
    return model


def test_bias_and_transposed_weights(tmp_path: Path) -> None:
    target = models.write_package(with_bias(models.tiny_decoder()), tmp_path / "target")
    graft = pairs.open_pair(target, tiny_draft(tmp_path))
    contexts = check(graft, "head")
    assert contexts[0].remarks == []  # a bias is part of the layer, no scaling
    record = drafts.read_record(draft_of(graft), Key.APPLIED)
    assert record is not None
    assert record["lm_head"].keys() >= {"digest", "bias_digest"}


@pytest.mark.parametrize("keep", [False, True])
def test_outputs(tmp_path: Path, keep: bool) -> None:
    graft = tiny_graft(tmp_path)
    pairs.run_passes(graft, AttachLmHead(keep_hidden=keep))
    model = draft_of(graft)
    assert {port.any_name for port in model.outputs} == ({"logits", "last_hidden_state"} if keep else {"logits"})
    assert model.output("logits").partial_shape == ov.PartialShape([-1, -1, 64])
    carried = {name for each in model.get_ordered_ops() for out in each.outputs() for name in out.names}
    assert ("last_hidden_state" in carried) == keep


@pytest.mark.parametrize("weights", FORMATS)
def test_weights_stay_byte_equal(tmp_path: Path, weights: WeightFormat) -> None:
    graft = tiny_graft(tmp_path, weights=weights)
    before = {k: v for k, v in pairs.weights(graft.target.model).items() if "lm_head" in k}
    pairs.run_passes(graft, AttachLmHead())
    assert {k: v for k, v in pairs.weights(draft_of(graft)).items() if "lm_head" in k} == before


def test_same_bytes_twice(tmp_path: Path) -> None:
    target = models.write_package(with_bias(models.tiny_decoder()), tmp_path / "target")
    draft = tiny_draft(tmp_path, rt_info={"output_multiplier": "0.5", "final_logit_softcapping": "20"})
    for name in ("a", "b"):
        graft = pairs.open_pair(target, draft)
        pairs.run_passes(graft, AttachEmbedding(), AttachLmHead(keep_hidden=True))
        ov.save_model(draft_of(graft), tmp_path / f"{name}.xml", compress_to_fp16=False)
    for suffix in (".xml", ".bin"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_padded_vocabulary_is_told(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(), tmp_path / "target", config={"vocab_size": 60})
    (context,) = pairs.run_passes(pairs.open_pair(target, tiny_draft(tmp_path)), AttachLmHead())
    assert context.remarks == ["padded vocabulary: the output layer has 64 rows for 60 tokens"]


def test_twice(tmp_path: Path) -> None:
    graft = tiny_graft(tmp_path)
    pairs.run_passes(graft, AttachLmHead())
    before = draft_of(graft).clone()
    (context,) = pairs.run_passes(graft, AttachLmHead())
    assert not pairs.changed(context)
    assert ir.same_structure(draft_of(graft), before) is None
    with pytest.raises(PreconditionError, match="attached without keep-hidden"):
        pairs.run_passes(graft, AttachLmHead(keep_hidden=True))


def test_an_output_layer_of_its_own_stays(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(), tmp_path / "target")
    draft = models.write_package(models.tiny_eagle3_draft(), tmp_path / "draft", config={})
    graft = pairs.open_pair(target, draft)
    before = draft_of(graft).clone()
    (context,) = pairs.run_passes(graft, AttachLmHead())
    assert context.remarks == [
        "unchanged: the draft has its own output layer of 16 tokens, mapped to the target's by d2t"
    ]
    assert not pairs.changed(context)
    assert ir.same_structure(draft_of(graft), before) is None


@pytest.mark.parametrize(
    ("kind", "keeps"), [(None, False), ("vanilla", False), ("gated", True), ("rnn", True), ("dflash2", True)]
)
@pytest.mark.parametrize("said", [None, True, False])
def test_hidden_rows_stay_for_a_head_that_reads_them(
    tmp_path: Path, kind: str | None, keeps: bool, said: bool | None
) -> None:
    head_info = {} if kind is None else {"markov_head_type": kind, "markov_rank": "4"}
    graft = tiny_graft(tmp_path, rt_info=head_info)
    pairs.run_passes(graft, AttachLmHead(keep_hidden=said))
    outputs = {port.any_name for port in draft_of(graft).outputs}
    assert outputs == {"logits"} | ({"last_hidden_state"} if (keeps if said is None else said) else set())


class TestRefused:
    def refused(self, graft: Graft, words: str) -> None:
        before = draft_of(graft).clone()
        with pytest.raises(PreconditionError, match=words):
            pairs.run_passes(graft, AttachLmHead())
        assert ir.same_structure(draft_of(graft), before) is None

    def test_width(self, tmp_path: Path) -> None:
        target = models.write_package(models.tiny_decoder(), tmp_path / "target")
        graft = pairs.open_pair(target, tiny_draft(tmp_path, hidden=64))
        self.refused(graft, "expected rows of 64, found 32")

    def test_vocabulary(self, tmp_path: Path) -> None:
        target = models.write_package(models.tiny_decoder(), tmp_path / "target")
        self.refused(pairs.open_pair(target, tiny_draft(tmp_path, vocab_size=100)), "another vocabulary")

    def test_another_target(self, tmp_path: Path) -> None:
        graft = tiny_graft(tmp_path)
        pairs.run_passes(graft, AttachLmHead())
        graft.target = Package(models.write_package(models.tiny_decoder(seed=7), tmp_path / "other"))
        self.refused(graft, "another output layer is attached")


@pytest.mark.parametrize(
    ("target", "draft"),
    [("qwen3", ""), ("qwen3-int8", "-int8"), ("qwen3-int4_sym_g32", "-int4"), ("qwen3", "_sliding")],
)
def test_zoo_pairs(zoo: Callable[[str], Path], target: str, draft: str) -> None:
    check(pairs.open_pair(zoo(target), zoo(f"qwen3_dflash_draft{draft}")))


@pytest.mark.parametrize("target", ["gemma3_text", "gpt2", "qwen2_vl", "gemma4", "phi3", "bloom"])
def test_zoo_targets_with_a_small_draft(zoo: Callable[[str], Path], tmp_path: Path, target: str) -> None:
    draft = tiny_draft(tmp_path, hidden=64, rt_info={"output_multiplier": "0.5", "final_logit_softcapping": "20"})
    check(pairs.open_pair(zoo(target), draft), multiplier=0.5, cap=20)


@pytest.mark.parametrize("weights", FORMATS)
def test_the_whole_graft(tmp_path: Path, weights: WeightFormat) -> None:
    """From tokens to draft logits: grafted equals target, host and exported draft step by step."""
    target = models.write_package(models.tiny_decoder(weights=weights, annotated=True, layers=4), tmp_path / "target")
    model = models.tiny_dflash_draft(weights=weights, target_layer_ids=(0, 2, 3))
    draft = models.write_package(model, tmp_path / "draft", config={})
    graft = pairs.open_pair(target, draft)
    pairs.run_passes(graft, ExposeHiddenStates(), MoveFc(), AttachEmbedding(), AttachLmHead())
    plain = pairs.open_pair(target, draft)
    tokens = pairs.tokens(9, vocabulary=64)
    states = pairs.target_states(plain.target.model, (0, 2, 3), tokens)
    gather = pairs.node(plain.target.model, "__module.model.embed_tokens/aten::embedding/Gather")
    table = ir.clone_subgraph([gather.input_value(0)])[0]
    result = ops.result(table)
    result.output(0).set_names({"table"})
    rows = support.infer(ov.Model([result], []), {})["table"]
    projected = support.run_decoder(graft.target.model, tokens)["last_hidden_state"]
    ungrafted, ours = pairs.compiled(draft_of(plain)), pairs.compiled(draft_of(graft))
    for block in (1, 2, 8):
        ids = [pairs.tokens(block, seed, 64) for seed in (1, 2)]
        calls = [(states[:, :6], rows[ids[0]]), (states[:, 6:], rows[ids[1]])]
        hidden = [call["last_hidden_state"] for call in pairs.run_draft(ungrafted, calls)]
        found = pairs.run_draft(ours, [(projected[:, :6], ids[0]), (projected[:, 6:], ids[1])])
        for want, got in zip(hidden, found, strict=True):
            assert got["logits"].shape == (1, block - 1, 64)
            if block > 1:
                np.testing.assert_allclose(got["logits"], head(plain.target.model, HEAD, want), rtol=0, atol=5e-5)
