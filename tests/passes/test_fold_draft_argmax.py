"""fold-draft-argmax: the graph's tokens are the host's, ties and unusable rows included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from ovgraft import drafts, ir
from ovgraft.drafts import markov, reference
from ovgraft.drafts.contract import FileName, Key, Port
from ovgraft.drafts.spec import HeadType
from ovgraft.errors import PreconditionError
from ovgraft.graft import Graft
from ovgraft.ir import opset
from ovgraft.passes.attach_embedding import AttachEmbedding
from ovgraft.passes.attach_lm_head import AttachLmHead
from ovgraft.passes.fold_draft_argmax import FoldDraftArgmax
from tests import models, pairs, support
from tests.drafts.markov.heads import random_head


def echo_draft(
    folder: Path, width: int, d2t: NDArray[np.int64] | None = None, element_type: ov.Type = ov.Type.f32, **metadata: str
) -> Graft:
    """A draft whose logits are its input: every row can be chosen."""
    states = ir.make_parameter(Port.HIDDEN_STATES, element_type, [-1, -1, width])
    same = opset.add(states, opset.constant(np.zeros((1, 1, 1)), element_type))
    results = [ir.make_result(same.output(0), Port.LOGITS)]
    if d2t is not None:
        results.append(ir.make_result(opset.constant(d2t).output(0), Port.D2T))
    model = ov.Model(results, [states], "echo")
    facts = {"DFLASH_MODE": "True", "MASK_TOKEN_ID": "3", "TARGET_LAYER_IDS": "0", "VOCAB_SIZE": "300"} | metadata
    for key, value in facts.items():
        ir.set_text(model, getattr(Key, key), value)
    return pairs.open_pair(models.write_package(model, folder / "draft", config={}))


def tokens(graft: Graft, rows: NDArray[Any], precision: str = "f32") -> NDArray[np.int64]:
    model = graft.target.model
    config = {"INFERENCE_PRECISION_HINT": precision}
    found = ir.core().compile_model(model, "CPU", config)({Port.HIDDEN_STATES: rows[None]})
    chosen = found[Port.DRAFT_TOKEN_IDS]
    assert chosen.dtype == np.int64
    assert chosen.shape == (1, len(rows))
    return np.array(chosen[0])


def awkward_rows(width: int) -> NDArray[np.float32]:
    random = np.random.default_rng(0)
    rows = random.standard_normal((8, width)).astype(np.float32)
    rows[1] = rows[1].astype(ml_dtypes.bfloat16)
    rows[2] = 0.5
    rows[3] = np.round(rows[3])
    rows[4, 2:] = -np.inf
    rows[5] = -np.abs(rows[5]) - 50
    rows[6] = np.where(random.integers(0, 2, width), 0.0, -0.0)
    rows[7, [width - 1, 5]] = 9.0
    return rows


@pytest.mark.parametrize("width", [7, 300, 4099])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_the_lowest_id_of_the_largest_values(width: int, precision: str, tmp_path: Path) -> None:
    graft = echo_draft(tmp_path, width, VOCAB_SIZE=str(width))
    pairs.run_passes(graft, FoldDraftArgmax())
    rows = awkward_rows(width)
    np.testing.assert_array_equal(tokens(graft, rows, precision), rows.argmax(axis=1))


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_rows_without_an_answer_give_minus_one(precision: str, tmp_path: Path) -> None:
    graft = echo_draft(tmp_path, 300)
    pairs.run_passes(graft, FoldDraftArgmax())
    rows = awkward_rows(300)
    rows[0, 299], rows[1, 0], rows[2], rows[3], rows[4, 1] = np.nan, np.nan, np.nan, -np.inf, np.inf
    found = tokens(graft, rows, precision)
    np.testing.assert_array_equal(found[:5], [-1] * 5)
    np.testing.assert_array_equal(found[5:], rows[5:].argmax(axis=1))


def test_unsorted_d2t(tmp_path: Path) -> None:
    ids = np.random.default_rng(1).permutation(300)[:40]
    d2t = ids - np.arange(40)
    graft = echo_draft(tmp_path, 40, d2t)
    pairs.run_passes(graft, FoldDraftArgmax())
    np.testing.assert_array_equal(tokens(graft, np.eye(40, dtype=np.float32)), ids)  # every draft id
    rows = awkward_rows(40)
    np.testing.assert_array_equal(tokens(graft, rows), reference.target_ids(d2t)[rows.argmax(axis=1)])
    rows[0] = np.nan
    assert tokens(graft, rows)[0] == -1


def test_multiplier_and_soft_cap_come_first(tmp_path: Path) -> None:
    """A negative multiplier turns the order round, and a saturated cap makes ties."""
    graft = echo_draft(tmp_path / "a", 300, OUTPUT_MULTIPLIER="-0.5")
    pairs.run_passes(graft, FoldDraftArgmax())
    rows = awkward_rows(300)[:1]
    np.testing.assert_array_equal(tokens(graft, rows), rows.argmin(axis=1))
    graft = echo_draft(tmp_path / "b", 300, OUTPUT_MULTIPLIER="2.0", FINAL_LOGIT_SOFTCAPPING="1.5")
    pairs.run_passes(graft, FoldDraftArgmax())
    rows[0, 100:], rows[0, [7, 9]] = -1.0, (90.0, 1000.0)
    assert tokens(graft, rows)[0] == 7
    random = np.random.default_rng(2).standard_normal((20, 300)).astype(np.float32) / 4
    capped = reference.scaled_rows(random, 2.0, 1.5)
    np.testing.assert_array_equal(tokens(graft, random), capped.argmax(axis=1))


def test_f16_logits(tmp_path: Path) -> None:
    graft = echo_draft(tmp_path, 300, element_type=ov.Type.f16)
    pairs.run_passes(graft, FoldDraftArgmax())
    rows = awkward_rows(300).astype(np.float16)
    np.testing.assert_array_equal(tokens(graft, rows), rows.argmax(axis=1))


def test_logits_stay_or_go(tmp_path: Path) -> None:
    d2t = np.zeros(40, np.int64)
    kept = echo_draft(tmp_path / "kept", 40, d2t, OUTPUT_MULTIPLIER="0.5", FINAL_LOGIT_SOFTCAPPING="30")
    (context,) = pairs.run_passes(kept, FoldDraftArgmax())
    assert [port.any_name for port in kept.target.model.outputs] == ["logits", "d2t", "draft_token_ids"]
    assert ir.get_text(kept.target.model, Key.OUTPUT_MULTIPLIER) == "0.5"  # still true of logits
    assert [edit.kind for edit in context.edits] == ["add"]
    (context,) = pairs.run_passes(kept, FoldDraftArgmax())
    assert context.remarks == ["unchanged: draft_token_ids is there already"]
    with pytest.raises(PreconditionError, match="another choice about logits"):
        pairs.run_passes(kept, FoldDraftArgmax(keep_logits=False))

    dropped = echo_draft(tmp_path / "dropped", 40, d2t, OUTPUT_MULTIPLIER="0.5", FINAL_LOGIT_SOFTCAPPING="30")
    (context,) = pairs.run_passes(dropped, FoldDraftArgmax(keep_logits=False))
    model = dropped.target.model
    assert [port.any_name for port in model.outputs] == ["draft_token_ids"]
    assert [edit.kind for edit in context.edits] == ["add", "remove"]
    assert ir.get_text(model, Key.OUTPUT_MULTIPLIER) == "1"
    assert ir.get_text(model, Key.FINAL_LOGIT_SOFTCAPPING) == "0"
    record = drafts.read_record(model, Key.APPLIED)
    assert record == {"argmax": {"output_multiplier": 0.5, "final_logit_softcapping": 30.0}}
    dropped.save(tmp_path / "out")
    again = pairs.open_pair(tmp_path / "out")
    (context,) = pairs.run_passes(again, FoldDraftArgmax(keep_logits=False))
    assert not pairs.changed(context)


@pytest.mark.parametrize("attach_embedding", [False, True])
def test_grafted_draft(attach_embedding: bool, tmp_path: Path) -> None:
    """With the target's output layer attached, the tokens are the argmax of the logits beside them."""
    ids = (2, 0)
    target = models.write_package(models.tiny_decoder(layers=4, vocab=64, annotated=True), tmp_path / "target")
    backbone = models.tiny_dflash_draft(n=2, target_layer_ids=ids)
    ir.set_text(backbone, Key.FINAL_LOGIT_SOFTCAPPING, "5.0")
    graft = pairs.open_pair(target, models.write_package(backbone, tmp_path / "draft", config={}))
    passes = (AttachEmbedding(),) if attach_embedding else ()
    pairs.run_passes(graft, *passes, AttachLmHead(), FoldDraftArgmax())
    random = np.random.default_rng(0)
    context = random.standard_normal((1, 5, 64)).astype(np.float32)
    block = random.standard_normal((1, 4, 32)).astype(np.float32) if not attach_embedding else np.array([[1, 3, 3, 3]])
    found = support.infer(graft.package("draft").model, support.draft_feeds(context, block))
    np.testing.assert_array_equal(found["draft_token_ids"], found["logits"].argmax(axis=-1))
    assert found["draft_token_ids"].shape == (1, 3)


def test_exported_eagle3_draft(zoo: Callable[[str], Path]) -> None:
    graft = pairs.open_pair(zoo("qwen3_12l"), zoo("qwen3_12l_eagle3_draft"))
    pairs.run_passes(graft, FoldDraftArgmax())
    draft = graft.package("draft").model
    random = np.random.default_rng(0)
    feeds = {
        "input_ids": random.integers(0, 2048, (1, 6)),
        "hidden_states": random.standard_normal((1, 6, 3 * 64)).astype(np.float32),
        "attention_mask": np.ones((1, 6), np.int64),
        "position_ids": np.arange(6)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    found = support.infer(draft, feeds)
    best = found["logits"].argmax(axis=-1)
    np.testing.assert_array_equal(found["draft_token_ids"], best + found["d2t"][best])


def test_no_logits(tmp_path: Path) -> None:
    graft = pairs.open_pair(models.write_package(models.tiny_dflash_draft(1), tmp_path / "draft", config={}))
    with pytest.raises(PreconditionError, match="the draft has no output logits"):
        pairs.run_passes(graft, FoldDraftArgmax())


def test_drafts_with_a_head_are_refused(tmp_path: Path) -> None:
    advertised = echo_draft(tmp_path / "a", 300, MARKOV_HEAD_TYPE="vanilla", MARKOV_RANK="8")
    packed = echo_draft(tmp_path / "b", 300)
    packed.target.add(FileName.MARKOV_HEAD, markov.build_head(random_head(HeadType.VANILLA)))
    for graft in (advertised, packed):
        with pytest.raises(PreconditionError, match="the draft has a Markov head"):
            pairs.run_passes(graft, FoldDraftArgmax())


def test_d2t_out_of_the_target(tmp_path: Path) -> None:
    graft = echo_draft(tmp_path, 40, np.full(40, 261, np.int64))
    with pytest.raises(PreconditionError, match="d2t maps a draft token outside the target vocabulary"):
        pairs.run_passes(graft, FoldDraftArgmax())
