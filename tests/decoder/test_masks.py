"""Masks are read by running them: no form of writing one can be missed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as opset

from ovgraft import ir
from ovgraft.decoder import MaskFacts, read_masks
from tests import support
from tests.decoder.masked import MASKS, one_attention


def masks_of(model: ov.Model) -> list[MaskFacts]:
    nodes = model.get_ordered_ops()
    return read_masks([node for node in nodes if node.get_type_name() == "ScaledDotProductAttention"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("causal", MaskFacts()),
        ("causal_bool", MaskFacts()),
        ("window_subtract", MaskFacts(window=6)),
        ("window_greater", MaskFacts(window=6)),
        ("window_from_positions", MaskFacts(window=6)),
        ("alibi_by_key", MaskFacts(alibi_slopes=(0.5, 0.25))),
        ("alibi_by_distance", MaskFacts(alibi_slopes=(0.5, 0.25))),
        ("runs_of_ones", MaskFacts(token_types=True)),
        ("runs_of_ones_in_a_window", MaskFacts(window=6, token_types=True)),
    ],
)
def test_forms_of_masks(name: str, expected: MaskFacts) -> None:
    (found,) = masks_of(one_attention(MASKS[name]))
    assert found == expected


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bidirectional", "rows see later rows"),
        ("prefix", "rows see later rows"),
        ("chunked", "chunked attention"),
        ("strided", "hides keys inside"),
        ("quadratic_bias", "not linear"),
        ("alibi_by_length", "changes with the length"),
        ("all_ones_of_the_call", "other rows than runs of ones"),
        ("heads_differ", "each head other keys"),
        ("image_tokens", "the values of input_ids"),
    ],
)
def test_masks_that_paged_attention_does_not_have(name: str, words: str) -> None:
    (found,) = masks_of(one_attention(MASKS[name]))
    assert found.problem is not None
    assert words in found.problem


def test_without_a_mask() -> None:
    (found,) = masks_of(one_attention(None))
    assert found.problem == "the attention has no mask: every row sees every row"


def test_the_model_is_left_alone() -> None:
    model = one_attention(MASKS["window_subtract"])
    before = ir.fingerprint(model)
    readers = [len(output.get_target_inputs()) for node in model.get_ordered_ops() for output in node.outputs()]
    masks_of(model)
    assert ir.fingerprint(model) == before
    assert readers == [len(output.get_target_inputs()) for node in model.get_ordered_ops() for output in node.outputs()]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3", [MaskFacts()] * 6),
        ("gemma3_text", [MaskFacts(window=64), MaskFacts()] * 2),
        ("gpt_oss", [MaskFacts(window=64), MaskFacts()] * 2),
        ("gemma4", [MaskFacts(window=64), MaskFacts()] * 2),
        ("bloom", [MaskFacts(alibi_slopes=(0.25, 0.0625, 0.015625, 0.00390625))] * 4),
        ("mpt", [MaskFacts(alibi_slopes=(0.25, 0.0625, 0.015625, 0.00390625))] * 4),
        ("lfm2", [MaskFacts()] * 2),
    ],
)
def test_real_exports(shared: Path, name: str, expected: list[MaskFacts]) -> None:
    model = ov.Core().read_model(support.model_file(shared / "zoo" / name))
    assert masks_of(model) == expected


def test_a_table_of_limited_length_ends_the_probe(shared: Path) -> None:
    """MPT slices a bias table of 1024 keys; the CPU clips longer requests without a word."""
    model = ov.Core().read_model(shared / "zoo" / "mpt" / "openvino_model.xml")
    limit = opset.constant(np.array(5000, np.int64))  # a length no mask of this model reaches
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ScaledDotProductAttention":
            unused = opset.multiply(opset.convert(limit, "f32"), opset.constant(np.float32(0)))
            node.input(3).replace_source_output(opset.add(node.input_value(3), unused).output(0))
    model.validate_nodes_and_infer_types()
    assert all(found.problem is None and found.window == 0 for found in masks_of(model))
