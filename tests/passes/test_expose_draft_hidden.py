"""expose-draft-hidden: the residual behind an Eagle-3 draft's one layer, found without its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from ovgraft import drafts, ir
from ovgraft.errors import PreconditionError, StructureError
from ovgraft.graft import Graft
from ovgraft.passes.expose_draft_hidden import ExposeDraftHidden
from tests import models, pairs

RESIDUAL = "__module.model.midlayer/aten::add/Add_1"
"""What GenAI takes: the Add of scope ``midlayer`` whose second input is a MatMul of a Multiply."""


@pytest.fixture
def graft(tmp_path: Path) -> Graft:
    target = models.write_package(models.tiny_decoder(), tmp_path / "target")
    return pairs.open_pair(target, models.write_package(models.tiny_eagle3_draft(), tmp_path / "draft", config={}))


def draft_of(graft: Graft) -> ov.Model:
    assert graft.draft is not None
    return graft.draft.model


def check(graft: Graft, vocabulary: int, width: int) -> None:
    plain = draft_of(graft).clone()
    pairs.run_passes(graft, ExposeDraftHidden())
    model = draft_of(graft)
    assert [port.any_name for port in model.outputs] == ["logits", "d2t", "last_hidden_state"]
    assert model.output("last_hidden_state").get_node().input_value(0).get_node().get_friendly_name() == RESIDUAL
    tokens, states = pairs.tokens(5, vocabulary=vocabulary), pairs.rows(5, width)
    calls = [(tokens[:, :3], states[:, :3]), (tokens[:, 3:], states[:, 3:])]
    expected = pairs.run_eagle3(pairs.tap(plain, [RESIDUAL]), calls)
    for want, got in zip(expected, pairs.run_eagle3(model, calls), strict=True):
        np.testing.assert_array_equal(got["last_hidden_state"], want["state_0"])
        np.testing.assert_array_equal(got["logits"], want["logits"])


def test_draft_of_the_zoo(zoo: Callable[[str], Path]) -> None:
    check(pairs.open_pair(zoo("qwen3_12l"), zoo("qwen3_12l_eagle3_draft")), 2048, 192)


def test_own_draft(graft: Graft) -> None:
    check(graft, 64, 96)


def test_names_do_not_matter(graft: Graft) -> None:
    model = draft_of(graft)
    wanted = pairs.node(model, RESIDUAL)
    for number, each in enumerate(model.get_ordered_ops()):
        if each.get_type_name() not in ("Parameter", "Result"):
            each.set_friendly_name(f"midlayer_{number}")
    pairs.run_passes(graft, ExposeDraftHidden())
    assert model.output("last_hidden_state").get_node().input_value(0).get_node() is wanted


def test_twice(graft: Graft) -> None:
    pairs.run_passes(graft, ExposeDraftHidden())
    before = draft_of(graft).clone()
    (context,) = pairs.run_passes(graft, ExposeDraftHidden())
    assert not pairs.changed(context)
    assert ir.same_structure(draft_of(graft), before) is None


def test_another_output_of_that_name(graft: Graft) -> None:
    model = draft_of(graft)
    drafts.add_output(
        model, pairs.node(model, "__module.model.norm/aten::mul/Multiply_1").output(0), "last_hidden_state"
    )
    with pytest.raises(PreconditionError, match=f"of something else: expected Add '{RESIDUAL}'.*found Multiply"):
        pairs.run_passes(graft, ExposeDraftHidden())


def test_dflash_draft(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(), tmp_path / "target")
    draft = models.write_package(models.tiny_dflash_draft(), tmp_path / "draft", config={})
    with pytest.raises(PreconditionError, match=r"only an Eagle-3 draft.*found dflash"):
        pairs.run_passes(pairs.open_pair(target, draft), ExposeDraftHidden())


def test_no_single_residual(graft: Graft) -> None:
    """A norm that reads two streams leaves nothing to choose."""
    model = draft_of(graft)
    final = pairs.node(model, "__module.model.norm/aten::mul/Multiply")
    earlier = pairs.node(model, "__module.model.midlayer/aten::add/Add")
    final.input(1).replace_source_output(ops.relu(earlier).output(0))
    model.validate_nodes_and_infer_types()
    with pytest.raises(StructureError, match="do not meet in one residual Add"):
        pairs.run_passes(graft, ExposeDraftHidden())
