"""Every row of the contract's error table that a model by itself, or a pair, can show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from ovgraft import ir
from ovgraft.drafts import markov
from ovgraft.drafts.contract import Key, Port
from ovgraft.drafts.markov import build_head, require_head, select_computation
from ovgraft.drafts.spec import HeadType
from ovgraft.errors import PreconditionError
from ovgraft.graft import Package
from ovgraft.ir import opset
from tests import models
from tests.drafts.markov.heads import ALL, HIDDEN, VOCABULARY, random_head


def codes(model: ov.Model) -> set[str]:
    return {reason.code for reason in markov.head_reasons(model)}


def backbone(head: str | None = "vanilla", rank: str | None = "8", hidden: int = HIDDEN) -> ov.Model:
    model = models.tiny_dflash_draft(1, hidden=hidden)
    for key, value in ((Key.MARKOV_HEAD_TYPE, head), (Key.MARKOV_RANK, rank)):
        if value is not None:
            ir.set_text(model, key, value)
    return model


def pair_codes(draft: ov.Model, head: ov.Model | None, vocab: int | None = VOCABULARY) -> set[str]:
    return {reason.code for reason in markov.backbone_reasons(draft, head, vocab)}


@pytest.mark.parametrize("head", ALL)
def test_heads_that_keep_the_contract(head: HeadType) -> None:
    model = build_head(random_head(head))
    assert require_head(model).type is head
    assert pair_codes(backbone(str(head)), model) == set()


@pytest.mark.parametrize("head", ALL)
def test_hidden_rows_that_the_draft_no_longer_gives(head: HeadType) -> None:
    draft = backbone(str(head))
    (result,) = draft.get_results()
    result.output(0).set_names({Port.LOGITS})
    facts = {"hidden-rows"} if head.reads_hidden else set()
    assert pair_codes(draft, build_head(random_head(head))) - {"draft-vocabulary"} == facts


@pytest.mark.parametrize("key", [Key.MARKOV_HEAD_TYPE, Key.MARKOV_RANK, Key.TOP_K, Key.VOCAB_SIZE])
def test_missing_metadata(key: tuple[str, ...]) -> None:
    model = build_head(random_head(HeadType.VANILLA))
    ir.delete(model, key)
    (reason,) = markov.head_reasons(model)
    assert reason.code == "head-metadata"
    assert "/".join(key) in reason.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (Key.TOP_K, "-1"),
        (Key.TOP_K, "2.5"),
        (Key.TOP_K, "many"),
        (Key.MARKOV_RANK, "-8"),
        (Key.MARKOV_HEAD_TYPE, "transformer"),
        (Key.VOCAB_SIZE, ""),
    ],
)
def test_malformed_metadata(key: tuple[str, ...], value: str) -> None:
    model = build_head(random_head(HeadType.VANILLA))
    ir.set_text(model, key, value)
    with pytest.raises(PreconditionError) as caught:
        require_head(model)
    assert "/".join(key) in str(caught.value)
    assert caught.value.reasons[0].code == "head-metadata"


@pytest.mark.parametrize(("value", "draft_vocab"), [("0", None), ("301", None), ("63", None), ("41", 40)])
def test_top_k_out_of_range_or_other_than_the_graphs(value: str, draft_vocab: int | None) -> None:
    model = build_head(random_head(HeadType.VANILLA, draft_vocab=draft_vocab))
    ir.set_text(model, Key.TOP_K, value)
    assert codes(model) & {"top-k", "port"}


def test_top_k_0_on_dflash2_and_above_0_on_rnn() -> None:
    dflash2, rnn = (build_head(random_head(head)) for head in (HeadType.DFLASH2, HeadType.RNN))
    ir.set_text(dflash2, Key.TOP_K, "0")
    ir.set_text(rnn, Key.TOP_K, "16")
    assert "top-k" in codes(dflash2)
    assert codes(rnn) == {"top-k"}


def test_a_missing_port_and_one_too_many() -> None:
    model = build_head(random_head(HeadType.VANILLA))
    ir.rename_tensor(model.input("block_begins"), "block_starts")
    reasons = {reason.code: reason.message for reason in markov.head_reasons(model)}
    assert "block_begins" in reasons["missing-port"]
    assert "block_starts" in reasons["unknown-port"]


@pytest.mark.parametrize(
    ("port", "kind", "shape"),
    [
        ("prev_token_ids", ov.Type.i32, [-1]),
        ("prev_token_ids", ov.Type.i64, [-1, 1]),
        ("draft_logits", ov.Type.f32, [-1, 299]),
        ("draft_logits", ov.Type.f32, [1, -1, VOCABULARY]),
        ("draft_hidden_states", ov.Type.f16, [-1, HIDDEN]),
        ("draft_hidden_states", ov.Type.f32, [-1, HIDDEN + 1]),
    ],
)
def test_another_dtype_rank_or_width(port: str, kind: ov.Type, shape: list[int]) -> None:
    """The port alone; what lies behind it does not have to be computable."""
    facts = {
        Key.MARKOV_HEAD_TYPE: "gated",
        Key.MARKOV_RANK: "8",
        Key.TOP_K: "0",
        Key.VOCAB_SIZE: str(VOCABULARY),
        Key.HIDDEN_SIZE: str(HIDDEN),
    }
    scorer = port == "draft_logits"
    wanted = markov.ports(HeadType.GATED, markov.Computation.SCORER if scorer else markov.Computation.DENSE)
    if scorer:
        facts[Key.TOP_K] = "4"
    good = build_head(random_head(HeadType.GATED), top_k=4)
    types = {name: item for item in (*good.inputs, *good.outputs) for name in item.names}
    inputs = {
        name: ir.make_parameter(name, *(types[name].get_element_type(), types[name].get_partial_shape()))
        for name in wanted.inputs
    }
    inputs[Port(port)] = ir.make_parameter(port, kind, shape)
    results = []
    for name in wanted.outputs:
        source = ir.make_parameter(f"as_{name}", types[name].get_element_type(), types[name].get_partial_shape())
        inputs[Port(name)] = source
        results.append(ir.make_result(source.output(0), name))
    model = ov.Model(results, list(inputs.values()), "ports")
    for key, value in facts.items():
        ir.set_text(model, key, value)
    found = [reason for reason in markov.head_reasons(model) if reason.code == "port"]
    assert len(found) == 1
    assert port in found[0].message
    assert "expected" in found[0].message


@pytest.mark.parametrize("kind", [ov.Type.u8, ov.Type.i8, ov.Type.u4, ov.Type.i4, ov.Type.f8e4m3])
def test_compressed_weights(kind: ov.Type) -> None:
    model = build_head(random_head(HeadType.VANILLA))
    table = next(node for node in model.get_ordered_ops() if node.get_friendly_name() == "markov_w2")
    tensor = ov.Tensor(kind, table.get_output_shape(0))
    compressed = opset.constant(tensor)
    for reader in table.output(0).get_target_inputs():
        reader.replace_source_output(compressed.output(0))
    model.validate_nodes_and_infer_types()
    (reason,) = [reason for reason in markov.head_reasons(model) if reason.code == "compressed"]
    assert kind.get_type_name() in reason.message
    assert reason.nodes[0].type == "Constant"


def test_a_rank_the_tables_do_not_have() -> None:
    model = build_head(random_head(HeadType.VANILLA))
    ir.set_text(model, Key.MARKOV_RANK, "16")
    reasons = markov.head_reasons(model)
    assert {reason.code for reason in reasons} == {"head-rank"}
    assert "8 columns, markov_rank is 16" in reasons[0].message


def test_a_computation_that_the_type_does_not_have() -> None:
    model = build_head(random_head(HeadType.VANILLA))
    ir.set_text(model, Key.MARKOV_HEAD_TYPE, "dflash2")
    assert "no-such-computation" in codes(model)


def test_no_computation_at_all() -> None:
    model = build_head(random_head(HeadType.VANILLA))
    select_computation(model, markov.Computation.DENSE)
    ir.rename_tensor(model.outputs[0], "bias")
    model.outputs[0].get_node().input_value(0).set_names({"bias"})
    assert "no-computation" in codes(model)


def test_backbone_and_head_disagree() -> None:
    head = build_head(random_head(HeadType.GATED))
    assert pair_codes(backbone("vanilla"), head) == {"head-type"}
    assert pair_codes(backbone("gated", "16"), head) == {"head-rank"}
    assert pair_codes(backbone(None, None), head) == {"head-unannounced"}
    assert pair_codes(backbone("gated"), head, vocab=301) == {"vocabulary"}
    assert pair_codes(backbone("gated", hidden=32), head) == {"hidden-size"}
    assert pair_codes(backbone("gated", None), head) == {"backbone-metadata"}
    assert pair_codes(backbone("none", "0"), head) == {"head-unannounced"}


def test_a_head_advertised_and_no_file(tmp_path: Path) -> None:
    assert pair_codes(backbone(), None) == {"head-missing"}
    assert pair_codes(backbone(None, None), None) == set()
    folder = models.write_package(backbone(), tmp_path / "draft")
    assert [reason.code for reason in markov.package_reasons(Package(folder))] == ["head-missing"]
    ov.save_model(
        build_head(random_head(HeadType.VANILLA)), folder / "openvino_markov_head_model.xml", compress_to_fp16=False
    )
    assert markov.package_reasons(Package(folder), VOCABULARY) == ()
    assert [reason.code for reason in markov.package_reasons(Package(folder), 64)] == ["vocabulary"]


def test_both_spellings_of_the_backbones_keys() -> None:
    model = models.tiny_dflash_draft(1)
    ir.set_text(model, ("markov_rank",), "8")
    ir.set_text(model, ("markov_head_type",), "gated")
    assert markov.read_advertised(model) == (HeadType.GATED, 8)
    ir.set_text(model, Key.MARKOV_RANK, "16")
    with pytest.raises(PreconditionError, match="two spellings of rt_info markov_rank disagree"):
        markov.read_advertised(model)


def test_head_over_draft_tokens_the_backbone_does_not_have() -> None:
    pruned = build_head(random_head(HeadType.VANILLA, draft_vocab=40))
    rows = ir.make_parameter("rows", ov.Type.f32, [-1, 48])
    logits = opset.relu(rows)
    model = ov.Model([ir.make_result(logits.output(0), Port.LOGITS)], [rows], "backbone")
    ir.set_text(model, Key.MARKOV_HEAD_TYPE, "vanilla")
    ir.set_text(model, Key.MARKOV_RANK, "8")
    assert pair_codes(model, pruned) == {"draft-vocabulary"}
    np.testing.assert_equal(markov.read_facts(pruned).draft_vocab_size, 40)
