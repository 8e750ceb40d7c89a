"""fuse-attention: every way exporters write attention out becomes one op again, with equal numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgraft
from ovgraft import decoder, ir
from ovgraft.errors import StructureError
from ovgraft.graft import Graft
from ovgraft.passbase import Context
from ovgraft.passes import FuseAttention
from tests import models, support
from tests.decoder.write_out import REFUSED, STYLES, grouped_heads, plain, select_mask, write_out

TOKENS = np.random.default_rng(0).integers(0, 60, 9)


def fuse(graft: Graft) -> Context:
    ctx = Context()
    FuseAttention().apply(graft, ctx)
    FuseAttention().ensures(graft)
    return ctx


def logits(graft: Graft) -> Any:
    return support.run_decoder(graft.target.model, TOKENS, split=(5, 6))["logits"]


@pytest.mark.parametrize("style", STYLES)
def test_styles(tmp_path: Path, style: Callable[..., Any]) -> None:
    graft = ovgraft.load(models.write_package(models.tiny_decoder(layers=2), tmp_path / "target"))
    wanted = logits(graft)
    write_out(graft.target.model, style)
    assert not ir.Graph(graft.target.model).find(decoder.ATTENTION)
    ctx = fuse(graft)
    assert len(ctx.edits) == 2
    np.testing.assert_allclose(logits(graft), wanted, atol=1e-5)
    ovgraft.Pipeline("paged-attention").run(graft)


def test_same_bytes_twice(tmp_path: Path) -> None:
    graft = ovgraft.load(models.write_package(models.tiny_decoder(layers=2), tmp_path / "target"))
    write_out(graft.target.model, grouped_heads)
    graft.save(tmp_path / "written out")
    for run in ("one", "two"):
        graft = ovgraft.load(tmp_path / "written out")
        fuse(graft)
        graft.save(tmp_path / run)
    one, two = ((tmp_path / run / "openvino_model.xml").read_bytes() for run in ("one", "two"))
    assert one == two


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe", "gemma3_text", "gpt2", "bloom"])
def test_real_exports(zoo: Callable[[str], Path], name: str, style: Callable[..., Any]) -> None:
    if style is grouped_heads and name in ("gpt2", "bloom"):
        pytest.skip("every query head has a key head of its own")
    if style is select_mask and name == "bloom":
        pytest.skip("a boolean mask cannot carry ALiBi")
    graft = ovgraft.load(zoo(name))
    wanted = logits(graft)
    count = write_out(graft.target.model, style)
    assert len(fuse(graft).edits) == count
    np.testing.assert_allclose(logits(graft), wanted, atol=1e-5)
    ovgraft.Pipeline("paged-attention").run(graft)


@pytest.mark.parametrize(("style", "code"), REFUSED.items())
def test_what_cannot_be_expressed(tmp_path: Path, style: Callable[..., Any], code: str) -> None:
    graft = ovgraft.load(models.write_package(models.tiny_decoder(layers=2), tmp_path / "target"))
    write_out(graft.target.model, style)
    before = ir.fingerprint(graft.target.model)
    with pytest.raises(StructureError) as caught:
        fuse(graft)
    assert [reason.code for reason in caught.value.reasons] == [code, code]
    assert all(reason.nodes for reason in caught.value.reasons)
    assert ir.fingerprint(graft.target.model) == before


def test_one_of_several_written_out(tmp_path: Path) -> None:
    graft = ovgraft.load(models.write_package(models.tiny_decoder(layers=3), tmp_path / "target"))
    wanted = logits(graft)
    write_out(graft.target.model, plain, only={1})
    (reason,) = decoder.readiness(ir.Graph(graft.target.model))
    assert reason.code == "decomposed-attention"
    assert "1 of 3" in reason.message
    assert len(fuse(graft).edits) == 1
    np.testing.assert_allclose(logits(graft), wanted, atol=1e-5)


def test_a_router_is_no_attention(zoo: Callable[[str], Path]) -> None:
    graph = ir.Graph(ovgraft.load(zoo("qwen3_moe")).target.model)
    assert graph.find("Softmax")
    assert decoder.find_decomposed(graph) == ([], [])


def test_nothing_to_do(tmp_path: Path) -> None:
    graft = ovgraft.load(models.write_package(models.tiny_decoder(layers=1), tmp_path / "target"))
    ctx = fuse(graft)
    assert not ctx.edits
    assert ctx.remarks == ["unchanged: no written-out attention"]
