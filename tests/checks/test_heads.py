"""Markov heads: alone, against each other, and against the formulas over their checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from ovgraft import checks
from ovgraft.drafts import markov
from ovgraft.drafts.markov import HeadWeights, Projection
from ovgraft.drafts.spec import HeadType
from ovgraft.errors import MismatchError

VOCAB, WIDTH, RANK = 48, 12, 8
SHAPES = {
    HeadType.GATED: (RANK, WIDTH + RANK),
    HeadType.RNN: (3 * RANK, 2 * RANK + WIDTH),
    HeadType.DFLASH2: (RANK, WIDTH),
}
HEADS = (HeadType.VANILLA, HeadType.GATED, HeadType.RNN, HeadType.DFLASH2)


def weights(head: HeadType, *, seed: int = 0, pruned: bool = False, confidence: bool = False) -> HeadWeights:
    random = np.random.default_rng(seed)

    def draw(*shape: int) -> np.typing.NDArray[np.float32]:
        return random.standard_normal(shape).astype(np.float32)

    size = 20 if pruned else VOCAB
    ids = np.sort(random.permutation(VOCAB)[:size])
    shape = SHAPES.get(head)
    bias = None if head is HeadType.DFLASH2 or shape is None else draw(shape[0])
    return HeadWeights(
        head,
        VOCAB,
        draw(VOCAB, RANK),
        draw(size, RANK),
        d2t=ids - np.arange(size) if pruned else None,
        projection=None if shape is None else Projection(draw(*shape), bias),
        confidence=Projection(draw(1, WIDTH + RANK), draw(1)) if confidence else None,
        hidden_size=WIDTH,
    )


def build(given: HeadWeights) -> ov.Model:
    return markov.build_head(
        given, top_k=None if given.type is HeadType.RNN else 5, confidence=given.confidence is not None
    )


@pytest.mark.parametrize(
    ("head", "pruned"), [*((head, False) for head in HEADS), (HeadType.VANILLA, True), (HeadType.GATED, True)]
)
def test_a_head_computes_its_formulas(head: HeadType, pruned: bool) -> None:
    given = weights(head, pruned=pruned)
    found = checks.compare_with_formulas(build(given), given.reference(), subject="head", samples=2)
    assert found.same, found
    names = {output.output for output in found.outputs}
    assert ("markov_bias" in names) == (head is not HeadType.DFLASH2)
    assert ("edge_scores" in names) == (head is not HeadType.RNN)


def test_the_confidence_too() -> None:
    given = weights(HeadType.VANILLA, confidence=True)
    found = checks.compare_with_formulas(build(given), given.reference(), subject="head")
    assert found.same
    assert "confidence" in {output.output for output in found.outputs}


@pytest.mark.parametrize("head", HEADS)
def test_other_tables_are_found(head: HeadType) -> None:
    other = weights(head, seed=1)
    found = checks.compare_with_formulas(build(weights(head)), other.reference(), subject="head")
    assert not found.same


def test_two_heads() -> None:
    a, b = build(weights(HeadType.GATED)), build(weights(HeadType.GATED, seed=1))
    assert checks.compare(a, a.clone()).same
    found = checks.compare(a, b)
    assert not found.same
    assert [output.same for output in found.outputs if output.output == "candidate_ids"] == [True]
    with pytest.raises(MismatchError, match="different things"):
        checks.compare(a, build(weights(HeadType.VANILLA)))


def test_a_selected_computation_is_compared_with_the_packed_head() -> None:
    packed = build(weights(HeadType.VANILLA))
    dense = packed.clone()
    markov.select_computation(dense, markov.Computation.DENSE)
    found = checks.compare(packed, dense)
    assert found.same
    assert [output.output for output in found.outputs] == ["markov_bias"]
    assert set(found.only_a) == {"candidate_ids", "edge_scores"}


def test_alone() -> None:
    report = checks.run_alone(build(weights(HeadType.RNN)), subject="head")
    assert report.good
    assert [output.output for output in report.outputs] == ["markov_bias", "next_rnn_state"]


def test_a_head_that_breaks_the_contract_is_refused() -> None:
    model = build(weights(HeadType.VANILLA))
    model.set_rt_info("7", ["dflash", "markov_rank"])
    with pytest.raises(MismatchError, match="no usable Markov head") as error:
        checks.run_alone(model)
    assert error.value.reasons


def test_the_checkpoint_beside_a_head(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "draft"
    shutil.copytree(zoo("checkpoints") / "deepspec_gated", folder)
    from ovgraft import drafts

    given = markov.read_head_weights(drafts.read_checkpoint(folder))
    head = markov.build_head(given, top_k=8)
    reference = checks.checkpoint_head(folder, head)
    assert reference is not None
    assert checks.compare_with_formulas(head, reference, subject="head").same
    rounded = markov.build_head(given, top_k=8, precision="f16")
    assert checks.checkpoint_head(folder, rounded) is None
    assert checks.checkpoint_head(tmp_path, head) is None
