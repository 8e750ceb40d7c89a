"""per-row-draft: the rewritten, paged draft proposes what the exported one does, packed, in any block length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

import ovgraft
from ovgraft import ir
from ovgraft.checks.paged_runner import PagedRunner, Rows
from ovgraft.drafts.cached_rows import CachedRows, read_cached_rows
from ovgraft.drafts.contract import Key
from ovgraft.drafts.row_attention import block_sees
from ovgraft.errors import StructureError
from ovgraft.graft import Graft
from ovgraft.passbase import Context
from ovgraft.passes import PerRowDraft
from tests import models, support

Array = NDArray[np.float32]
ROUNDS = [((40, 3), (8, 2)), ((1, 5), (1, 16)), ((6, 20), (7, 7)), ((1, 1), (16, 2))]
"""(context rows, block rows) of two requests, round by round: past the window of 16, blocks of 1 to 16."""


class Reference:
    """The exported SDPA draft, one request."""

    def __init__(self, graft: Graft) -> None:
        assert graft.draft is not None
        self._request = support.compile_parity(graft.draft.model.clone()).create_infer_request()
        self.past = 0

    def block(self, context: Array, block: Array) -> Array:
        """``last_hidden_state`` without the anchor row."""
        feeds = support.draft_feeds(context[None], block[None], self.past)
        self.past += len(context)
        return np.array(self._request.infer(feeds)["last_hidden_state"][0])


def rows_of(sequence: str, context: Array, block: Array) -> Rows:
    kinds = np.r_[np.zeros(len(context), np.int64), np.ones(len(block), np.int64)]
    inputs = {
        "inputs_embeds": np.concatenate([np.zeros((len(context), block.shape[1]), np.float32), block]),
        "hidden_states": np.concatenate([context, np.zeros((len(block), context.shape[1]), np.float32)]),
        "token_type_ids": kinds,
    }
    return Rows(sequence, inputs, keep=len(context))


def paged_runner(graft: Graft) -> PagedRunner:
    ovgraft.Pipeline("per-row-draft,paged-attention{model=draft}").run(graft)
    assert graft.draft is not None
    return PagedRunner(graft.draft.model, support.PARITY, blocks=2)


def check_rounds(graft: Graft) -> None:
    assert graft.draft is not None
    shapes = {port.any_name: port.get_partial_shape() for port in graft.draft.model.inputs}
    width, hidden = (shapes[name][2].get_length() for name in ("hidden_states", "inputs_embeds"))
    references = {name: Reference(graft) for name in "ab"}
    alone = {name: None for name in "ab"}
    runner = paged_runner(graft)
    random = np.random.default_rng(0)
    for contexts, blocks in ROUNDS:
        batch, wanted = [], []
        for name, context_rows, block_rows in zip(alone, contexts, blocks, strict=True):
            context = random.standard_normal((context_rows, width)).astype(np.float32)
            block = random.standard_normal((block_rows, hidden)).astype(np.float32)
            wanted.append(references[name].block(context, block))
            batch.append(rows_of(name, context, block))
        for found, expected, context_rows in zip(runner.step(batch), wanted, contexts, strict=True):
            proposals = found["last_hidden_state"][context_rows + 1 :]
            np.testing.assert_allclose(proposals, expected, atol=2e-5)
            assert np.isfinite(found["last_hidden_state"]).all()


@pytest.mark.parametrize("name", support.DFLASH_DRAFTS)
def test_packed_rounds_equal_the_exported_draft(zoo: Callable[[str], Path], name: str) -> None:
    target = "qwen3_agree" if "agree" in name else "qwen3"
    check_rounds(ovgraft.load(target=zoo(target), draft=zoo(name)))


def test_fixture(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(), tmp_path / "target")
    draft = models.write_package(models.tiny_dflash_draft(), tmp_path / "draft")
    check_rounds(ovgraft.load(target=target, draft=draft))


@pytest.mark.parametrize("name", ["qwen3_dflash_draft", "qwen3_dflash_draft-int4", "qwen3_dflash_draft_sliding"])
def test_after_the_whole_graft(zoo: Callable[[str], Path], name: str) -> None:
    """move-fc, attach-embedding and attach-lm-head first: token ids in, logits out."""
    grafted = ovgraft.load(target=zoo("qwen3"), draft=zoo(name))
    graft_text = "expose-hidden-states,move-fc,attach-embedding,attach-lm-head"
    ovgraft.Pipeline(graft_text).run(grafted)
    assert grafted.draft is not None
    reference = support.compile_parity(grafted.draft.model.clone()).create_infer_request()
    runner = paged_runner(grafted)
    random = np.random.default_rng(1)
    context = random.standard_normal((21, 64)).astype(np.float32)
    ids = np.array([7, 3, 3, 3, 3])
    wanted = np.array(reference.infer(support.draft_feeds(context[None], ids[None], 0))["logits"][0])
    inputs = {
        "input_ids": np.r_[np.full(21, 3), ids],
        "hidden_states": np.concatenate([context, np.zeros((5, 64), np.float32)]),
        "token_type_ids": np.r_[np.zeros(21, np.int64), np.ones(5, np.int64)],
    }
    (found,) = runner.step([Rows("a", inputs, keep=21)])
    np.testing.assert_allclose(found["logits"][22:], wanted, atol=1e-4)


def test_roll_back_equals_a_fresh_run(zoo: Callable[[str], Path]) -> None:
    graft = ovgraft.load(target=zoo("qwen3"), draft=zoo("qwen3_dflash_draft_sliding"))
    runner = paged_runner(graft)
    random = np.random.default_rng(2)
    context = random.standard_normal((30, 192)).astype(np.float32)
    blocks = [random.standard_normal((rows, 64)).astype(np.float32) for rows in (8, 3, 8)]
    runner.step([rows_of("a", context[:10], blocks[0])])
    runner.step([rows_of("a", context[10:13], blocks[1])])
    (third,) = runner.step([rows_of("a", context[13:], blocks[2])])
    (fresh,) = runner.step([rows_of("b", context, blocks[2])])
    np.testing.assert_allclose(third["last_hidden_state"][-8:], fresh["last_hidden_state"][-8:], atol=1e-5)


def test_adjacent_blocks_do_not_meet(zoo: Callable[[str], Path]) -> None:
    """The second request brings no context row, so the ones of two blocks follow each other."""
    graft = ovgraft.load(target=zoo("qwen3"), draft=zoo("qwen3_dflash_draft"))
    runner = paged_runner(graft)
    random = np.random.default_rng(3)
    context = random.standard_normal((9, 192)).astype(np.float32)
    first, second = (random.standard_normal((4, 64)).astype(np.float32) for _ in range(2))
    none = np.zeros((0, 192), np.float32)
    runner.step([rows_of("a", context, first), rows_of("b", context, first)])
    together = runner.step([rows_of("a", none, first), rows_of("b", none, second)])
    (alone,) = runner.step([rows_of("b", none, second)])
    np.testing.assert_allclose(together[1]["last_hidden_state"], alone["last_hidden_state"], atol=1e-5)


def test_same_bytes_twice(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(), tmp_path / "target")
    draft = models.write_package(models.tiny_dflash_draft(), tmp_path / "draft")
    for run in ("one", "two"):
        graft = ovgraft.load(target=target, draft=draft)
        ovgraft.Pipeline("per-row-draft,paged-attention{model=draft}").run(graft)
        graft.save(tmp_path / run)
    one, two = ((tmp_path / run / "draft" / "openvino_model.xml").read_bytes() for run in ("one", "two"))
    assert one == two


def test_twice_is_once(zoo: Callable[[str], Path]) -> None:
    graft = ovgraft.load(target=zoo("qwen3"), draft=zoo("qwen3_dflash_draft"))
    report = ovgraft.Pipeline("per-row-draft,per-row-draft").run(graft)
    assert [record.status for record in report.records] == ["changed", "unchanged"]


def test_a_causal_decoder_is_no_exported_draft(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(), tmp_path / "target")
    draft = models.write_package(models.tiny_eagle3_draft(), tmp_path / "draft")
    with pytest.raises(ovgraft.OvgraftError, match="DFlash"):
        PerRowDraft().apply(ovgraft.load(target=target, draft=draft), Context())


def test_attention_that_is_causal_by_attribute_is_refused(tmp_path: Path) -> None:
    """Its mask input is not read, so running it would tell nothing."""
    target = models.write_package(models.tiny_decoder(), tmp_path / "target")
    graft = ovgraft.load(target=target, draft=models.write_package(models.tiny_dflash_draft(), tmp_path / "draft"))
    assert graft.draft is not None
    for node in graft.draft.model.get_ordered_ops():
        if node.get_type_name() == "ScaledDotProductAttention":
            causal = ir.opset.scaled_dot_product_attention(*node.input_values(), causal=True)
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(causal.output(0))
    with pytest.raises(StructureError) as caught:
        PerRowDraft().apply(graft, Context())
    assert "causal by attribute" in str(caught.value.reasons[0])


def test_a_window_too_long_to_try_is_not_taken_for_none() -> None:
    class Sliding:
        integers = (40_000,)
        takes_token_types = False

        def run(self, past: int, rows: int, *, context: int) -> Array:
            distance = np.arange(rows)[:, None] - np.arange(-context, rows)
            return np.where(distance < self.integers[0], 0, -np.inf).astype(np.float32)[None]

    assert "window of 40000" in str(block_sees(cast(Any, Sliding()), 0))


def test_a_window_narrower_than_the_block_is_refused(zoo: Callable[[str], Path]) -> None:
    graft = ovgraft.load(target=zoo("qwen3"), draft=zoo("qwen3_dflash_draft_sliding"))
    assert graft.draft is not None
    ir.set_text(graft.draft.model, Key.BLOCK_SIZE, "17")
    with pytest.raises(StructureError) as caught:
        PerRowDraft().apply(graft, Context())
    assert {reason.code for reason in caught.value.reasons} == {"window-in-block"}
    ir.set_text(graft.draft.model, Key.BLOCK_SIZE, "16")
    PerRowDraft().apply(graft, Context())


def _other_axis(node: ov.Node) -> ov.Node:
    """The same op over another axis."""
    inputs, kind = node.input_values(), node.get_type_name()
    if kind == "Concat":
        return ir.opset.concat(inputs, 1)
    axis = ir.opset.constant(np.array(1))
    return ir.opset.variadic_split(inputs[0], axis, inputs[2]) if kind == "VariadicSplit" else _gather(inputs, axis)


def _gather(inputs: list[ov.Output], axis: ov.Node) -> ov.Node:
    return ir.opset.gather(inputs[0], inputs[1], axis)


@pytest.mark.parametrize("which", ["joined", "appended", "split", "cache"])
@pytest.mark.parametrize("port", [1, 2])
def test_rows_joined_along_another_axis_are_refused(tmp_path: Path, which: str, port: int) -> None:
    """The rewrite joins along the row axis; heads joined or parted side by side would be taken for rows."""
    target = models.write_package(models.tiny_decoder(), tmp_path / "target")
    graft = ovgraft.load(target=target, draft=models.write_package(models.tiny_dflash_draft(), tmp_path / "draft"))
    assert graft.draft is not None
    graph = ir.Graph(graft.draft.model)
    rows = read_cached_rows(graph, graph.find("ScaledDotProductAttention")[0], port)
    assert isinstance(rows, CachedRows)
    split = graph.inputs[rows.joined][1][0]
    node = graph.nodes[{"joined": rows.joined, "appended": rows.appended, "split": split, "cache": rows.cache}[which]]
    other = _other_axis(node)
    for output, new in zip(node.outputs(), other.outputs(), strict=True):
        for reader in output.get_target_inputs():
            reader.replace_source_output(new)
    with pytest.raises(StructureError) as caught:
        PerRowDraft().apply(graft, Context())
    assert caught.value.reasons[0].code == "not-an-exported-draft"


def test_unknown_layout_is_refused_with_the_node(zoo: Callable[[str], Path]) -> None:
    graft = ovgraft.load(target=zoo("qwen3"), draft=zoo("qwen3_dflash_draft"))
    assert graft.draft is not None
    for node in graft.draft.model.get_ordered_ops():
        if node.get_type_name() == "ScaledDotProductAttention":
            node.input(1).replace_source_output(node.input_value(0))
            break
    with pytest.raises(StructureError) as caught:
        PerRowDraft().apply(graft, Context())
    assert caught.value.reasons[0].code == "not-an-exported-draft"
    assert caught.value.reasons[0].nodes
