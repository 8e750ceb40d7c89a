from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset16 as ops

from ovgraft.checks.feeds import BLOCK_ROWS, PREFILL_ROWS, Call, FeedMaker, calls_of, vocabulary
from ovgraft.drafts.contract import Port
from ovgraft.errors import MismatchError
from tests import models


def test_a_decoder_gets_a_prefill_and_single_tokens_under_a_growing_mask() -> None:
    maker = FeedMaker([models.tiny_decoder(vocab=64)])
    calls = calls_of(maker.kind, maker.stateful, 2)
    assert [call.label for call in calls] == ["prefill", "step 1", "step 2"]
    feeds = [maker.feeds(call) for call in calls]
    assert [value["input_ids"].shape for value in feeds] == [(1, PREFILL_ROWS), (1, 1), (1, 1)]
    assert [value["attention_mask"].shape[1] for value in feeds] == [9, 10, 11]
    assert [value["position_ids"].ravel().tolist() for value in feeds] == [list(range(9)), [9], [10]]
    assert all((value["attention_mask"] == 1).all() for value in feeds)
    assert all(value["input_ids"].min() >= 0 and value["input_ids"].max() < 64 for value in feeds)
    assert feeds[0]["beam_idx"].dtype == np.int32


def test_a_dflash_draft_gets_context_and_block_and_keeps_only_context() -> None:
    maker = FeedMaker([models.tiny_dflash_draft(target_width=32, n=3)])
    calls = calls_of(maker.kind, maker.stateful, 3)
    past = 0
    for call in calls:
        feeds = maker.feeds(call)
        assert call.past == past
        assert feeds["inputs_embeds"].shape == (1, BLOCK_ROWS, 32)
        assert feeds["hidden_states"].shape == (1, call.context, 96)
        assert feeds["position_ids"].ravel().tolist() == list(range(past, past + call.context + BLOCK_ROWS))
        assert feeds["attention_mask"].shape == (1, past + call.context + BLOCK_ROWS)
        past += call.context
    assert len({call.context for call in calls[1:]}) > 1


def test_an_eagle3_draft_reads_as_many_states_as_tokens() -> None:
    model = models.tiny_eagle3_draft()
    maker = FeedMaker([model])
    feeds = maker.feeds(Call("prefill", 0, 5))
    assert feeds["hidden_states"].shape[:2] == feeds["input_ids"].shape == (1, 5)
    assert feeds["attention_mask"].shape == (1, 5)


def test_the_seed_decides_and_one_more_port_moves_no_other() -> None:
    model = models.tiny_decoder()
    call = Call("prefill", 0, 4)
    first = FeedMaker([model], 1).feeds(call)
    assert (FeedMaker([model], 1).feeds(call)["input_ids"] == first["input_ids"]).all()
    assert (FeedMaker([model], 2).feeds(call)["input_ids"] != first["input_ids"]).any()
    assert (FeedMaker([model], 1).feeds(call, 1)["input_ids"] != first["input_ids"]).any()
    fewer = model.clone()
    fewer.remove_parameter(next(p for p in fewer.get_parameters() if "beam_idx" in p.output(0).names))
    maker = FeedMaker([model, fewer], 1)
    assert maker.unshared == ("beam_idx",)
    assert (maker.feeds(call)["input_ids"] == first["input_ids"]).all()


def test_models_that_read_different_things_are_refused() -> None:
    draft = models.tiny_dflash_draft(n=3)
    with pytest.raises(MismatchError) as error:
        FeedMaker([draft, models.tiny_dflash_draft(n=2)])
    assert "96" in error.value.reasons[0].message
    assert "64" in error.value.reasons[0].message
    with pytest.raises(MismatchError, match="different things") as error:
        FeedMaker([models.tiny_decoder(), models.tiny_decoder(inputs_embeds=True)])
    assert {reason.code for reason in error.value.reasons} == {"input-missing"}


def _model(shape: list[int], name: str, element_type: ov.Type = ov.Type.f32) -> ov.Model:
    parameter = ops.parameter(shape, element_type, name=name)
    parameter.output(0).set_names({name})
    result = ops.result(ops.abs(parameter))
    result.output(0).set_names({"y"})
    return ov.Model([result], [parameter], "m")


def test_unknown_ports_get_one_batch_and_zeros_for_indices() -> None:
    call = calls_of("other", stateful=False, steps=4)
    assert [c.label for c in call] == ["call"]
    pixels = FeedMaker([_model([-1, 3, -1, 8], "pixels")]).feeds(call[0])["pixels"]
    assert pixels.shape == (1, 3, PREFILL_ROWS, 8)
    indices = FeedMaker([_model([-1, 2], "places", ov.Type.i64)]).feeds(call[0])["places"]
    assert not indices.any()


def test_a_width_that_nothing_tells_is_refused_with_a_way_out() -> None:
    with pytest.raises(MismatchError, match="inputs_embeds") as error:
        FeedMaker([_model([-1, -1, -1], "inputs_embeds")]).feeds(Call("call", 0, 2))
    assert "--inputs" in str(error.value.hint)


def test_position_ids_of_three_rows_are_equal_rows() -> None:
    model = _model([3, -1, -1], Port.POSITION_IDS, ov.Type.i64)
    positions = FeedMaker([model]).feeds(Call("step 1", 5, 2))[Port.POSITION_IDS]
    assert positions.tolist() == [[[5, 6]]] * 3


def test_static_dimensions_win() -> None:
    model = models.tiny_decoder()
    model.reshape({"input_ids": [1, 3], "attention_mask": [1, 3], "position_ids": [1, 3], "beam_idx": [1]})
    assert FeedMaker([model]).feeds(Call("prefill", 0, 9))["input_ids"].shape == (1, 3)


def test_a_pruned_vocabulary_bounds_the_tokens() -> None:
    assert vocabulary(models.tiny_decoder(vocab=96)) == 96
    assert vocabulary(models.tiny_text_embeddings(vocab=64)) == 64
    assert vocabulary(models.tiny_dflash_draft()) is None
