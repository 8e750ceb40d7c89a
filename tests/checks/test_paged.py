"""The paged runner and the comparison of stateful and paged forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset16 as ops

import ovgraft
from ovgraft.checks.grafts import compare_grafts
from ovgraft.checks.paged import compare_paged
from ovgraft.checks.paged_runner import PagedRunner, Rows
from ovgraft.errors import MismatchError, PreconditionError
from tests import models, support


def paged_model(folder: Path, **options: object) -> ov.Model:
    graft = ovgraft.load(models.write_package(models.tiny_decoder(layers=2, **options), folder))  # type: ignore[arg-type]
    ovgraft.Pipeline("paged-attention").run(graft)
    return graft.target.model


def tokens(*ids: int) -> dict[str, np.ndarray]:
    return {"input_ids": np.array(ids)}


def test_comparison_sees_a_difference(tmp_path: Path) -> None:
    stateful = models.tiny_decoder(layers=2)
    other = paged_model(tmp_path / "other", seed=1)
    found = compare_paged(stateful, other, lengths=(5, 3))
    assert not found.same
    assert found.outputs[0].problem == "differs"


@pytest.mark.parametrize("swap", [False, True])
def test_grafts_of_two_forms(tmp_path: Path, swap: bool) -> None:
    folder = models.write_package(models.tiny_decoder(layers=2), tmp_path / "target")
    pair = ovgraft.load(folder), ovgraft.load(folder)
    ovgraft.Pipeline("paged-attention").run(pair[1])
    found = compare_grafts(*(reversed(pair) if swap else pair))
    assert found.same
    assert found.comparisons[0].calls == ("whole", "chunks of 7", "one by one")


def test_an_output_without_a_name(tmp_path: Path) -> None:
    model = paged_model(tmp_path)
    model.output("logits").get_tensor().set_names(set())
    (outputs,) = PagedRunner(model, support.PARITY).step([Rows("a", tokens(1, 2))])
    assert [values.shape[0] for values in outputs.values()] == [2]


def test_an_output_whose_rows_belong_to_no_entry(tmp_path: Path) -> None:
    model = paged_model(tmp_path)
    logits = model.output("logits").get_node().input_value(0)
    doubled = ops.concat([logits, logits], 0)
    doubled.output(0).get_tensor().set_names({"doubled"})
    model.add_results([ops.result(doubled)])
    runner = PagedRunner(model, support.PARITY)
    with pytest.raises(MismatchError, match="doubled has neither a row per token") as refused:
        runner.step([Rows("a", tokens(1, 2, 3))])
    assert str(refused.value.found).startswith("[6, ")


def test_block_size_is_read_from_the_compiled_model(tmp_path: Path) -> None:
    model = paged_model(tmp_path / "target")
    for precision in ("f32", "f16", "u8"):
        runner = PagedRunner(model, {**support.PARITY, "KV_CACHE_PRECISION": precision})
        shape = runner.compiled.input("value_cache.0").get_partial_shape()
        assert runner.block_size == 32
        assert shape[2].get_length() == 32


def test_reduced_cache_precision_is_close(tmp_path: Path) -> None:
    model = paged_model(tmp_path / "target")
    ids = tokens(*range(40))
    exact = PagedRunner(model, support.PARITY).step([Rows("a", ids)])[0]["logits"]
    for precision, limit in (("f16", 1e-2), ("u8", 0.3)):
        runner = PagedRunner(model, {**support.PARITY, "KV_CACHE_PRECISION": precision})
        found = runner.step([Rows("a", ids)])[0]["logits"]
        assert 0 < np.abs(found - exact).max() < limit


def test_roll_back_and_more_blocks_than_at_the_start(tmp_path: Path) -> None:
    runner = PagedRunner(paged_model(tmp_path / "target"), support.PARITY, blocks=1)
    prompt = list(range(30))
    runner.step([Rows("a", tokens(*prompt))])
    (straight,) = runner.step([Rows("a", tokens(5, 6, 7, 8))])
    runner.roll_back("a", 30)
    runner.step([Rows("a", tokens(9, 9)), Rows("b", tokens(*range(40)))])
    runner.roll_back("a", 30)
    (again,) = runner.step([Rows("a", tokens(5, 6, 7, 8))])
    np.testing.assert_array_equal(again["logits"], straight["logits"])
    assert runner.length("a") == 34
    with pytest.raises(ValueError, match="the sequence has 34 rows"):
        runner.roll_back("a", 35)


def test_dropped_sequences_leave_their_blocks(tmp_path: Path) -> None:
    runner = PagedRunner(paged_model(tmp_path / "target"), support.PARITY, blocks=2)
    (first,) = runner.step([Rows("a", tokens(*range(50)))])
    runner.drop("a")
    (second,) = runner.step([Rows("b", tokens(*range(50)))])
    np.testing.assert_array_equal(first["logits"], second["logits"])


def test_rows_that_do_not_stay(tmp_path: Path) -> None:
    runner = PagedRunner(paged_model(tmp_path / "target"), support.PARITY)
    runner.step([Rows("a", tokens(1, 2, 3), keep=2)])
    assert runner.length("a") == 2
    (again,) = runner.step([Rows("a", tokens(4))])
    (fresh,) = runner.step([Rows("b", tokens(1, 2, 4))])
    np.testing.assert_allclose(again["logits"][-1], fresh["logits"][-1], atol=1e-5)


def test_a_stateful_model_is_not_paged() -> None:
    with pytest.raises(PreconditionError, match="not in PagedAttention form"):
        PagedRunner(models.tiny_decoder(layers=1), support.PARITY)


def test_linear_attention_does_not_roll_back(shared: Path) -> None:
    graft = ovgraft.load(shared / "zoo" / "lfm2")
    ovgraft.Pipeline("paged-attention").run(graft)
    runner = PagedRunner(graft.target.model, support.PARITY)
    runner.step([Rows("a", tokens(1, 2, 3))])
    with pytest.raises(PreconditionError, match="cannot be rolled back"):
        runner.roll_back("a", 1)
    runner.drop("a")
    (again,) = runner.step([Rows("b", tokens(1, 2, 3))])
    (fresh,) = runner.step([Rows("c", tokens(1, 2, 3))])
    np.testing.assert_allclose(again["logits"], fresh["logits"], atol=1e-5)


def test_logits_for_sampled_rows_only(tmp_path: Path) -> None:
    model = paged_model(tmp_path / "target")
    (every,) = PagedRunner(model, support.PARITY).step([Rows("a", tokens(1, 2, 3, 4))])
    graft = ovgraft.load(models.write_package(models.tiny_decoder(layers=2), tmp_path / "again"))
    report = ovgraft.Pipeline("paged-attention,gather-sampled-rows,gather-sampled-rows").run(graft)
    assert [record.status for record in report.records] == ["changed", "changed", "unchanged"]
    request = support.compile_parity(graft.target.model)
    runner = PagedRunner(graft.target.model, support.PARITY)
    assert request.input("sampled_tokens_indices").get_element_type() == ov.Type.i64
    (found,) = runner.step([Rows("a", tokens(1, 2, 3, 4), sampled=[3, 1])])
    np.testing.assert_allclose(found["logits"], every["logits"][[3, 1]], atol=1e-5)


def test_sampled_rows_need_the_paged_form(tmp_path: Path) -> None:
    graft = ovgraft.load(models.write_package(models.tiny_decoder(layers=1), tmp_path / "target"))
    with pytest.raises(ovgraft.OvgraftError, match="not in PagedAttention form"):
        ovgraft.Pipeline("gather-sampled-rows").run(graft)
