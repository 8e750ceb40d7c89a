"""Heads on disk: the checkpoint's bytes, one copy of each table, and models that still work after a round trip."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
import pytest

from ovgraft import ir
from ovgraft.drafts import reference
from ovgraft.drafts.markov import HeadRunner, HeadWeights, build_head, select_computation, set_top_k
from ovgraft.drafts.markov.computations import Computation
from ovgraft.drafts.spec import HeadType
from ovgraft.errors import CheckpointError
from tests.drafts.markov.heads import ALL, RANK, WITH_SCORER, random_blocks, random_head


def save(model: ov.Model, folder: Path) -> Path:
    xml = folder / "openvino_markov_head_model.xml"
    ov.save_model(model, xml, compress_to_fp16=False)
    return xml


def stored(model: ov.Model) -> dict[str, ov.Node]:
    """Constants by name."""
    return {node.get_friendly_name(): node for node in model.get_ordered_ops() if node.get_type_name() == "Constant"}


@pytest.mark.parametrize("head", ALL)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_bytes_on_disk_are_the_checkpoints(head: HeadType, dtype: str, tmp_path: Path) -> None:
    weights = random_head(head, dtype=dtype, confidence=head is not HeadType.DFLASH2)
    model = ir.read_model(save(build_head(weights, confidence=weights.confidence is not None), tmp_path))
    constants = stored(model)
    kinds = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
    for name, array in weights.tensors():
        assert constants[name].get_element_type().get_type_name() == kinds[dtype]
        assert constants[name].data.tobytes() == array.tobytes()
        readers = {target.get_node().get_type_name() for target in constants[name].output(0).get_target_inputs()}
        assert dtype == "float32" or readers == {"Convert"}


@pytest.mark.parametrize("head", ALL)
def test_all_computations_share_one_copy(head: HeadType, tmp_path: Path) -> None:
    weights = random_head(head, vocab=6400, confidence=head is not HeadType.DFLASH2)
    xml = save(build_head(weights, confidence=weights.confidence is not None), tmp_path)
    bytes_of_weights = sum(array.nbytes for _, array in weights.tensors())
    rest = xml.with_suffix(".bin").stat().st_size - bytes_of_weights
    assert 0 <= rest < 2048  # axes and other small constants
    assert rest < weights.w1.nbytes / 8


def test_pruned_rows_are_the_checkpoints_and_the_others_zero(tmp_path: Path) -> None:
    weights = random_head(HeadType.VANILLA, draft_vocab=40)
    assert weights.d2t is not None
    table = stored(ir.read_model(save(build_head(weights), tmp_path)))["markov_w2"]
    assert table.get_element_type() == ov.Type.bf16
    rows = np.asarray(table.data).view(np.uint16)
    tokens = reference.target_ids(weights.d2t)
    np.testing.assert_array_equal(rows[tokens], weights.w2.view(np.uint16))
    assert not np.delete(rows, tokens, axis=0).any()


@pytest.mark.parametrize("head", WITH_SCORER)
def test_save_load_change_k_run(head: HeadType, tmp_path: Path) -> None:
    weights = random_head(head, vocab=6400)
    blocks = random_blocks(weights, (2, 3))
    xml = save(build_head(weights), tmp_path)
    for k in (1, 16, 200):
        model = ir.read_model(xml)
        assert set_top_k(model, k) == 64
        select_computation(model, Computation.SCORER)
        again = tmp_path / f"k{k}"
        again.mkdir()
        ids, edges = HeadRunner(ir.read_model(save(model, again))).score(*blocks.given)
        wanted_ids, wanted = reference.lattice(weights.reference(), *blocks.given[:3], k, blocks.hidden)
        np.testing.assert_array_equal(ids, wanted_ids)
        np.testing.assert_allclose(edges, wanted, atol=2e-4)


@pytest.mark.parametrize("precision", ["f16", "f32"])
@pytest.mark.parametrize("head", ALL)
def test_precision_on_request(head: HeadType, precision: Any, tmp_path: Path) -> None:
    weights = random_head(head, confidence=head is HeadType.GATED)
    constants = stored(ir.read_model(save(build_head(weights, precision=precision), tmp_path)))
    wanted = np.dtype(np.float16 if precision == "f16" else np.float32)
    for name, array in weights.tensors():
        if not name.startswith("confidence"):
            assert constants[name].data.dtype == wanted
            np.testing.assert_array_equal(constants[name].data, array.astype(wanted))


def test_f16_refuses_values_it_has_no_room_for() -> None:
    weights = random_head(HeadType.VANILLA)
    large = weights.w2.copy()
    large[3, 4] = 1e6
    with pytest.raises(CheckpointError, match="markov_w2 does not fit float16: expected at most 65504, found 999424"):
        build_head(replace(weights, w2=large), precision="f16")


def test_tables_in_a_mapped_file_are_not_copied(tmp_path: Path) -> None:
    weights = random_head(HeadType.VANILLA)
    file = tmp_path / "tables"
    file.write_bytes(weights.w1.tobytes() + weights.w2.tobytes())
    mapped = np.memmap(file, np.uint8, "r").view(ml_dtypes.bfloat16).reshape(2, -1, RANK)
    model = build_head(HeadWeights(HeadType.VANILLA, weights.vocab_size, *mapped))
    constants = stored(model)
    for name, table in (("markov_w1", mapped[0]), ("markov_w2", mapped[1])):
        assert constants[name].data.__array_interface__["data"][0] == table.__array_interface__["data"][0]
    clone = model.clone()
    del model, constants, mapped, table
    bias, _ = HeadRunner(clone).dense([5])
    np.testing.assert_allclose(bias, weights.reference().step(np.array([5]))[0], atol=1e-5)
