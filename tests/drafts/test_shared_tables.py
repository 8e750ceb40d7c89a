"""Frozen copies of the target's tables: dropped when they are the target's, refused when they are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops

from ovgraft import decoder, ir
from ovgraft.drafts.checkpoint import Checkpoint, read_checkpoint
from ovgraft.drafts.shared_tables import Match, compare_table, resolve_shared
from ovgraft.errors import CheckpointError
from tests.drafts.checkpoints import BF16, BUILDERS, write_checkpoint

Array = NDArray[Any]
ROWS, COLUMNS = 1500, 32  # more than one block of rows


def table(seed: int = 0, rows: int = ROWS) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, COLUMNS)).astype(BF16)


def floats(values: Array, kind: str) -> ov.Output:
    if kind == "bf16":
        stored = constant(values.astype(BF16), values.shape, ov.Type.bf16)
    else:
        stored = ops.constant(values.astype(np.float32 if kind == "f32" else np.float16))
    return (stored if kind == "f32" else ops.convert(stored, "f32")).output(0)


def eight_bits(values: Array, *, signed: bool = False) -> ov.Output:
    """NNCF's form: u8 with a zero point, or i8, a scale per row stored as f16."""
    exact = values.astype(np.float32)
    low = np.minimum(exact.min(1, keepdims=True), 0)
    span = np.maximum(exact.max(1, keepdims=True), 0) - low
    scale = (np.abs(exact).max(1, keepdims=True) / 127 if signed else span / 255).astype(np.float16)
    wide = scale.astype(np.float32)
    if signed:
        stored = np.clip(np.round(exact / wide), -127, 127).astype(np.int8)
        return ops.convert(ops.multiply(ops.convert(ops.constant(stored), "f16"), ops.constant(scale)), "f32").output(0)
    zero = np.round(-low / wide).astype(np.uint8)
    stored = np.clip(np.round(exact / wide) + zero, 0, 255).astype(np.uint8)
    shifted = ops.subtract(ops.convert(ops.constant(stored), "f16"), ops.convert(ops.constant(zero), "f16"))
    return ops.convert(ops.multiply(shifted, ops.constant(scale)), "f32").output(0)


def four_bits(values: Array, kind: str) -> ov.Output:
    """Groups of 8 columns."""
    groups = values.astype(np.float32).reshape(len(values), -1, 8)
    low = np.minimum(groups.min(2, keepdims=True), 0) if kind == "u4" else -np.abs(groups).max(2, keepdims=True)
    high = np.maximum(groups.max(2, keepdims=True), 0)
    scale = ((high - low) / 15 if kind == "u4" else -low / 7).astype(np.float16)
    zero = np.round(-low / scale) if kind == "u4" else np.zeros_like(low)
    first, last = (0, 15) if kind == "u4" else (-8, 7)
    stored = np.clip(np.round(groups / scale) + zero, first, last).astype(np.int8)
    nibbles = (stored.reshape(-1) & 15).astype(np.uint8)
    whole = constant(nibbles[::2] | nibbles[1::2] << 4, stored.shape, getattr(ov.Type, kind))
    shifted = ops.subtract(ops.convert(whole, "f16"), ops.constant(zero.astype(np.float16)))
    scaled = ops.multiply(shifted, ops.constant(scale))
    return ops.convert(ops.reshape(scaled, [len(values), -1], False), "f32").output(0)


def constant(values: Array, shape: tuple[int, ...], kind: ov.Type) -> ov.Node:
    """A Constant of a type numpy does not have, from its bytes."""
    tensor = ov.Tensor(kind, ov.Shape(shape))
    tensor.data.reshape(-1).view(np.uint8)[:] = values.reshape(-1).view(np.uint8)
    return ops.constant(tensor)


STORED: dict[str, Callable[[Array], ov.Output]] = {
    "f32": lambda values: floats(values, "f32"),
    "bf16": lambda values: floats(values, "bf16"),
    "f16": lambda values: floats(values, "f16"),
    "u8": eight_bits,
    "i8": lambda values: eight_bits(values, signed=True),
    "u4": lambda values: four_bits(values, "u4"),
    "i4": lambda values: four_bits(values, "i4"),
}


@pytest.mark.parametrize("kind", STORED)
def test_a_copy_is_told_in_every_storage_form(kind: str) -> None:
    own = table()
    found = compare_table(own, STORED[kind](own))
    assert found.format == kind
    assert found.match is (Match.IDENTICAL if kind in ("f32", "bf16", "f16") else Match.ROUNDED), found.detail


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("change", ["other", "permuted", "scaled", "negated"])
def test_another_table_is_told_in_every_storage_form(kind: str, change: str) -> None:
    own = table()
    changed = {
        "other": table(1),
        "permuted": np.roll(own, 1, axis=0),
        "scaled": (own.astype(np.float32) * 1.5).astype(BF16),
        "negated": (-own.astype(np.float32)).astype(BF16),
    }
    assert compare_table(own, STORED[kind](changed[change])).match is Match.DIFFERENT


@pytest.mark.parametrize("kind", ["f32", "bf16", "f16", "u8"])
def test_one_changed_row_is_enough(kind: str) -> None:
    own = table()
    changed = own.copy()
    changed[ROWS - 1] = changed[0]
    assert compare_table(own, STORED[kind](changed)).match is Match.DIFFERENT


@pytest.mark.parametrize("kind", ["f32", "bf16", "f16"])
def test_a_fine_tune_that_moved_one_number_by_one_spacing(kind: str) -> None:
    own = table()
    changed = own.copy()
    changed.view(np.uint16)[7, 7] += 1
    assert compare_table(own, STORED[kind](changed)).match is Match.DIFFERENT


def test_a_copy_rounded_to_the_draft_s_type() -> None:
    """The target was exported from f32 weights, the trainer saved its copy as bf16."""
    exact = np.random.default_rng(2).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    for kind in ("f32", "f16", "u8"):
        assert compare_table(exact.astype(BF16), STORED[kind](exact)).match is Match.ROUNDED


def test_f16_limits() -> None:
    """Subnormals lose bits in f16, and large numbers are clamped."""
    own = np.array([[1e-7, 3e-6, 1e5, -1e5, 1.0]], np.float32).astype(BF16)
    exact = own.astype(np.float32)
    with np.errstate(over="ignore"):
        stored = np.clip(exact, -65504, 65504).astype(np.float16)
    assert compare_table(own, floats(stored, "f16")).match is Match.ROUNDED


def test_nan_is_a_difference() -> None:
    own = table()
    broken = own.copy()
    broken[3, 3] = np.nan
    for kind in ("f32", "f16"):
        assert compare_table(own, STORED[kind](broken)).match is Match.DIFFERENT
    assert compare_table(broken, STORED["u8"](own)).match is Match.DIFFERENT


@pytest.mark.parametrize("kind", ["f32", "f16", "u8"])
def test_a_transposed_weight(kind: str) -> None:
    own = table()
    exact = np.ascontiguousarray(own.astype(np.float32).T)
    if kind == "u8":
        scale = (np.abs(exact).max(0, keepdims=True) / 127).astype(np.float16)
        stored = np.round(exact / scale).astype(np.int8)
        target = ops.multiply(ops.convert(ops.constant(stored), "f16"), ops.constant(scale)).output(0)
    else:
        target = floats(exact, kind)
    assert compare_table(own, target).match in (Match.IDENTICAL, Match.ROUNDED)
    assert compare_table(table(1), target).match is Match.DIFFERENT


def test_forms_that_are_not_compared() -> None:
    own = table(rows=4)
    assert "shape" not in compare_table(own, floats(own, "f32")).detail
    assert compare_table(own, floats(table(rows=5), "f32")).match is Match.DIFFERENT
    assert compare_table(own, ops.parameter([4, COLUMNS]).output(0)).match is Match.DIFFERENT
    found = compare_table(own, ops.exp(ops.constant(own.astype(np.float32))).output(0))
    assert found.match is Match.DIFFERENT
    assert "Exp" in found.detail


class TestResolve:
    @pytest.fixture
    def draft(self, tmp_path: Path) -> Checkpoint:
        return read_checkpoint(write_checkpoint(tmp_path, *BUILDERS["deepspec_vanilla"]()))

    def targets(self, draft: Checkpoint, kind: str = "f32") -> tuple[ov.Output, ov.Output]:
        names = ("embed_tokens.weight", "lm_head.weight")
        embedding, lm_head = (STORED[kind](draft.weights.tensor(name)) for name in names)
        return embedding, lm_head

    def test_copies_are_dropped(self, draft: Checkpoint) -> None:
        resolved = resolve_shared(draft, *self.targets(draft))
        assert resolved.spec.shares_embedding
        assert resolved.spec.shares_lm_head
        assert set(draft.weights) - set(resolved.weights) == {"embed_tokens.weight", "lm_head.weight"}
        assert resolved.spec.warnings == ()
        assert "identical" in resolved.spec.sources["own_embedding"].note

    def test_a_compressed_target_is_named(self, draft: Checkpoint) -> None:
        resolved = resolve_shared(draft, *self.targets(draft, "u8"))
        assert resolved.spec.shares_lm_head
        assert [warning.code for warning in resolved.spec.warnings] == ["table-rounded"] * 2
        assert "u8" in resolved.spec.warnings[0].message

    def test_another_target_is_refused(self, draft: Checkpoint) -> None:
        embedding, lm_head = self.targets(draft)
        with pytest.raises(CheckpointError, match=r"embed_tokens.weight is not the target's") as caught:
            resolve_shared(draft, lm_head, lm_head)
        assert caught.value.key == "embed_tokens.weight"
        assert "another target" in str(caught.value.hint)
        with pytest.raises(CheckpointError, match="lm_head"):
            resolve_shared(draft, embedding, embedding)

    def test_kept_on_request(self, draft: Checkpoint) -> None:
        embedding, _ = self.targets(draft)
        kept = resolve_shared(draft, embedding, embedding, keep=True)
        assert kept.spec.shares_embedding
        assert kept.spec.own_lm_head
        assert "lm_head.weight" in kept.weights
        assert [warning.code for warning in kept.spec.warnings] == ["table-different"]

    @pytest.mark.parametrize("name", ["zlab_dflash", "speculators_dspark", "minicpm_pruned", "specforge"])
    def test_other_checkpoints_stay_as_they_are(self, name: str, tmp_path: Path) -> None:
        draft = read_checkpoint(write_checkpoint(tmp_path, *BUILDERS[name]()))
        nothing = ops.parameter([1]).output(0)
        assert resolve_shared(draft, nothing, nothing) is draft


@pytest.mark.parametrize("target", ["qwen3", "qwen3-int8", "qwen3-int4_sym_g32"])
def test_zoo_drafts_hold_the_zoo_target_s_tables(target: str, zoo: Callable[[str], Path], shared: Path) -> None:
    read = decoder.read_decoder(ir.read_model(zoo(target) / "openvino_model.xml"))
    assert read.embedding is not None
    for name in ("deepspec_vanilla", "deepspec_gated", "deepspec_rnn", "deepspec_headless"):
        draft = read_checkpoint(shared / "zoo" / "checkpoints" / name)
        resolved = resolve_shared(draft, read.embedding.table, read.lm_head.weight)
        assert resolved.spec.shares_embedding
        assert resolved.spec.shares_lm_head


def test_a_zoo_draft_is_not_another_model_s(zoo: Callable[[str], Path], shared: Path) -> None:
    read = decoder.read_decoder(ir.read_model(zoo("llama") / "openvino_model.xml"))
    assert read.embedding is not None
    draft = read_checkpoint(shared / "zoo" / "checkpoints" / "deepspec_vanilla")
    with pytest.raises(CheckpointError, match="not the target's"):
        resolve_shared(draft, read.embedding.table, read.lm_head.weight)
