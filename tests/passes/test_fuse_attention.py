"""fuse-attention: every way exporters write attention out becomes one op again, with equal numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as opset

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


def unfit(name: str) -> list[Callable[..., Any]]:
    """Styles a family cannot be written in."""
    if name == "gpt2":
        return [grouped_heads]  # every query head has a key head of its own
    return [grouped_heads, select_mask] if name == "bloom" else []  # a boolean mask cannot carry ALiBi


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first"),
    [
        *((name, first) for name in ("qwen3", "qwen3_moe", "gemma3_text", "gpt2", "bloom") for first in (0, 4)),
        *(("gemma3_text", first) for first in (1, 5)),  # its masks alternate: every style meets both
    ],
)
def test_real_exports(zoo: Callable[[str], Path], name: str, first: int) -> None:
    """Every layer in a style of its own; the cases of a family have them all."""
    graft = ovgraft.load(zoo(name))
    wanted = logits(graft)
    styles = [style for style in STYLES if style not in unfit(name)]
    count = len(ir.Graph(graft.target.model).find(decoder.ATTENTION))
    assert count >= 4
    for layer in reversed(range(count)):
        write_out(graft.target.model, styles[(first + layer) % len(styles)], only={layer})
    assert not ir.Graph(graft.target.model).find(decoder.ATTENTION)
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


LOWEST = float(np.finfo(np.float32).min)


def attention_over(kind: str, mask: str) -> ov.Model:
    """Attention written out over ``q``, ``k``, ``v`` in f16 or f32, its Softmax in f32; row 2 sees nothing.

    Args:
        kind: What queries, keys and values are.
        mask: ``constant`` is folded by the plugin, ``fed`` comes in, ``selected`` fills in, ``twice`` is both.
    """
    ports = [ir.make_parameter(name, "f32", [1, 2, -1, 4]) for name in "qkv"]
    query, key, value = (opset.convert(port, kind) for port in ports)
    keep = ir.make_parameter("keep", "f32", [1, 1, -1, -1])
    scores = opset.multiply(
        opset.convert(opset.matmul(query, key, False, True), "f32"), opset.constant(np.float32(0.5))
    )
    dropped = opset.multiply(opset.subtract(opset.constant(np.float32(1)), keep), opset.constant(np.float32(LOWEST)))
    match mask:
        case "constant":
            masked = opset.add(scores, opset.constant((1 - KEEP) * np.float32(LOWEST)))
        case "fed":
            masked = opset.add(scores, dropped)
        case "selected":
            seen = opset.greater(keep, opset.constant(np.float32(0.5)))
            masked = opset.select(seen, scores, opset.constant(np.float32(LOWEST)))
        case _:
            seen = opset.greater(keep, opset.constant(np.float32(0.5)))
            masked = opset.select(seen, opset.add(scores, dropped), opset.constant(np.float32(LOWEST)))
    weights = opset.convert(opset.softmax(masked, -1), kind)
    output = opset.convert(opset.matmul(weights, value, False, False), "f32")
    inputs = ports if mask == "constant" else [*ports, keep]
    return ov.Model([ir.make_result(output.output(0), "output")], inputs)


KEEP = np.tril(np.ones((1, 1, 5, 5), np.float32))
KEEP[:, :, 2] = 0  # as a padded row of a batch


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("mask", ["constant", "fed", "selected", "twice"])
def test_a_row_that_sees_nothing_stays_what_it_was(kind: str, mask: str) -> None:
    model = attention_over(kind, mask)
    random = np.random.default_rng(0)
    feeds: dict[str, Any] = {name: random.standard_normal((1, 2, 5, 4)).astype(np.float32) for name in "qkv"}
    if mask != "constant":
        feeds["keep"] = KEEP
    wanted = support.infer(model, feeds)["output"]
    found, refused = decoder.find_decomposed(ir.Graph(model))
    assert not refused
    for match in found:
        decoder.fuse(match)
    model.validate_nodes_and_infer_types()
    assert ir.Graph(model).find(decoder.ATTENTION)
    fused = support.infer(model, feeds)["output"]
    assert np.isfinite(wanted).all()
    np.testing.assert_allclose(fused, wanted, rtol=0, atol=1e-5)
