"""Pairs of which one or both are paged, per-row drafts, and mistakes that only the drafts show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from safetensors.numpy import save_file

import ovgraft
from ovgraft import checks, ir
from ovgraft.checks.hosts import PagedHost, open_host, runnable
from ovgraft.decoder.paging import PagedInput
from ovgraft.graft import Graft
from tests import models

GRAFT = "expose-hidden-states,move-fc,attach-embedding,attach-lm-head"
PAGED = f"{GRAFT},per-row-draft,paged-attention,paged-attention{{model=draft}}"
EAGLE3 = "expose-hidden-states{layers=0,1,3},move-fc,expose-draft-hidden"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    target = models.write_package(models.tiny_decoder(layers=3, vocab=64), folder / "target")
    draft = models.tiny_dflash_draft(1, n=3, target_layer_ids=(0, 1, 2))
    return target, models.write_package(draft, folder / "draft")


def opened(pair: tuple[Path, Path], passes: str = "") -> Graft:
    graft = ovgraft.load(target=pair[0], draft=pair[1])
    if passes:
        ovgraft.Pipeline(passes).run(graft)
    return graft


@pytest.fixture(scope="module")
def paged(pair: tuple[Path, Path]) -> Graft:
    return opened(pair, PAGED)


FORMS = {
    "ungrafted": "",
    "grafted": GRAFT,
    "per-row": f"{GRAFT},per-row-draft",
    "draft paged": "per-row-draft,paged-attention{model=draft}",
    "all paged": PAGED,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_equals_the_paged_pair(pair: tuple[Path, Path], paged: Graft, form: str) -> None:
    found = checks.compare_grafts(opened(pair, FORMS[form]), paged, steps=2)
    assert found.same, found
    assert found.notes == ()
    target, draft = found.comparisons
    assert (target.subject, draft.subject) == ("target", "draft")
    assert target.calls == ("whole", "chunks of 7", "one by one")
    assert (draft.samples, draft.calls) == (3, ("prefill", "step 1", "step 2"))
    assert [output.output for output in draft.outputs] == ["logits"]
    # four block rows and 64 tokens of three sequences over three calls; an SDPA draft keeps the anchor's row
    rows = 4 if form in ("per-row", "draft paged", "all paged") else 3
    assert draft.outputs[0].elements == 3 * 3 * rows * 64


def test_a_draft_paged_under_a_stateful_target(pair: tuple[Path, Path]) -> None:
    (found,) = checks.compare_grafts(opened(pair, GRAFT), opened(pair, f"{GRAFT},per-row-draft"), steps=1).comparisons
    assert found.same
    assert found.samples == 3
    assert [output.output for output in found.outputs] == ["target logits", "draft logits"]
    assert {(output.atol, output.rtol) for output in found.outputs} == {(1e-4, 1e-4)}


def narrow(graft: Graft) -> None:
    """A window that the draft was not trained with."""
    model = graft.package("draft").model
    node = next(node for node in model.get_ordered_ops() if node.get_type_name() == ir.PAGED_ATTENTION)
    node.input(PagedInput.SLIDING_WINDOW).replace_source_output(ir.opset.constant(np.int32(3)).output(0))
    model.validate_nodes_and_infer_types()


def causal(graft: Graft) -> None:
    """A block whose rows do not see the later ones."""
    model = graft.package("draft").model
    node = next(node for node in model.get_ordered_ops() if node.get_type_name() == ir.PAGED_ATTENTION)
    empty = ir.opset.constant(np.zeros(0, np.int32))
    node.input(PagedInput.TOKEN_TYPE_IDS).replace_source_output(empty.output(0))
    model.validate_nodes_and_infer_types()


@pytest.mark.parametrize(("form", "mistake"), [("grafted", narrow), ("all paged", causal)])
def test_a_paged_draft_that_sees_something_else_is_found(
    pair: tuple[Path, Path], form: str, mistake: Callable[[Graft], None]
) -> None:
    wrong = opened(pair, PAGED)
    mistake(wrong)
    found = checks.compare_grafts(opened(pair, FORMS[form]), wrong, steps=1)
    target, draft = found.comparisons
    assert target.same
    assert not draft.same
    assert not found.same


def test_another_draft_in_the_paged_form_is_found(pair: tuple[Path, Path], paged: Graft, tmp_path: Path) -> None:
    draft = models.tiny_dflash_draft(1, n=3, target_layer_ids=(0, 1, 2), seed=9)
    other = opened((pair[0], models.write_package(draft, tmp_path / "draft")), PAGED)
    assert not checks.compare_grafts(paged, other, steps=0).same


def test_an_eagle3_pair_in_both_forms(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(layers=4), tmp_path / "target")
    pair = target, models.write_package(models.tiny_eagle3_draft(), tmp_path / "draft")
    pages = f"{EAGLE3},paged-attention,paged-attention{{model=draft}}"
    found = checks.compare_grafts(opened(pair, EAGLE3), opened(pair, pages), steps=2)
    assert found.same, found
    assert [output.output for output in found.comparisons[1].outputs] == ["logits", "d2t", "last_hidden_state"]
    assert found.comparisons[1].samples == 3


@pytest.mark.parametrize("form", ["per-row", "all paged"])
def test_each_model_alone(pair: tuple[Path, Path], form: str) -> None:
    graft = opened(pair, FORMS[form])
    for package in graft.packages.values():
        report = checks.run_alone(package.model, steps=2)
        assert report.good
        assert report.calls == ("prefill", "step 1", "step 2")


def test_a_paged_model_that_takes_embeddings(tmp_path: Path) -> None:
    """Paging forgets how wide they are."""
    graft = ovgraft.load(models.write_package(models.tiny_decoder(layers=1, inputs_embeds=True), tmp_path / "target"))
    ovgraft.Pipeline("paged-attention").run(graft)
    assert checks.run_alone(graft.target.model, steps=1).good


def test_given_inputs_reach_both_forms(pair: tuple[Path, Path], paged: Graft) -> None:
    ids = np.arange(5)[None]
    beam_idx = np.zeros(1, np.int32)
    given: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": ids,
        "beam_idx": beam_idx,
    }
    found = checks.compare(opened(pair, GRAFT).target.model, paged.target.model, inputs=given)
    assert found.same
    assert found.outputs[0].elements == 5 * 64


def test_the_pages_of_a_sequence_are_its_own(pair: tuple[Path, Path], paged: Graft) -> None:
    """Together and one after the other, and again after a reset."""
    host = PagedHost(paged.target.model, "it")
    feeds: dict[int, dict[str, Any]] = {
        at: {"input_ids": np.random.default_rng(at).integers(0, 64, (1, 5 + at))} for at in range(3)
    }
    together = host.step(feeds)
    host.reset()
    for at, alone in feeds.items():
        np.testing.assert_allclose(host.run(alone, at)["logits"], together[at]["logits"], atol=1e-5)
        assert together[at]["logits"].shape == (1, 5 + at, 64)


def test_a_block_leaves_no_trace(pair: tuple[Path, Path]) -> None:
    model = runnable(opened(pair, "per-row-draft").package("draft").model)
    random = np.random.default_rng(0)
    host = open_host(model, "it")

    def second(block: np.ndarray) -> np.ndarray:
        host.reset()
        for states, rows in ((first_states, block), (more_states, last)):
            found = host.run({"hidden_states": states, "inputs_embeds": rows})["last_hidden_state"]
        return found

    def drawn(rows: int, width: int) -> np.ndarray:
        return random.standard_normal((1, rows, width)).astype(np.float32)

    first_states, more_states, last = drawn(6, 96), drawn(2, 96), drawn(4, 32)
    np.testing.assert_array_equal(second(drawn(4, 32)), second(drawn(4, 32)))


def test_a_mask_embedding_beside_the_draft_counts(tmp_path: Path) -> None:
    """The ungrafted witness reads it too, and notices when the graft does not."""
    target = models.write_package(models.tiny_decoder(layers=3), tmp_path / "target")
    folder = models.write_package(models.tiny_dflash_draft(1), tmp_path / "draft")
    plain = opened((target, folder), GRAFT)
    save_file({"mask_embedding": np.full(32, 2, np.float32)}, folder / "mask_embedding.safetensors")
    pair = opened((target, folder))
    assert checks.compare_grafts(pair, opened((target, folder), GRAFT), steps=1).same
    assert not checks.compare_grafts(pair, plain, steps=1).same


def test_a_device_that_is_not_there(paged: Graft) -> None:
    with pytest.raises(ovgraft.OvgraftError, match="no device"):
        PagedHost(paged.target.model, "it", device="NONE")


def test_a_paged_model_that_does_not_run_is_told(paged: Graft) -> None:
    host = PagedHost(paged.package("draft").model, "the draft")
    feeds: dict[str, Any] = {"hidden_states": np.zeros((1, 2, 5), np.float32), "input_ids": np.zeros((1, 3), np.int64)}
    with pytest.raises(ovgraft.OvgraftError, match="the draft does not run on hidden_states"):
        host.run(feeds)
    assert isinstance(paged.target.model, ov.Model)
