"""Grafted pairs against ungrafted ones, and mistakes that must not pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ovgraft
from ovgraft import checks, decoder, ir
from ovgraft.errors import MismatchError
from ovgraft.graft import Graft
from tests import models

DFLASH = "annotate-hidden-states,expose-hidden-states,move-fc,attach-embedding,attach-lm-head"
EAGLE3 = "expose-hidden-states{layers=0,1,3},move-fc,expose-draft-hidden"


@pytest.fixture(scope="module")
def dflash(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("dflash")
    target = models.write_package(models.tiny_decoder(layers=4, vocab=64), folder / "target")
    draft = models.write_package(models.tiny_dflash_draft(n=3, target_layer_ids=(0, 2, 3)), folder / "draft")
    return target, draft


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("eagle3")
    target = models.write_package(models.tiny_decoder(layers=4, vocab=64), folder / "target")
    return target, models.write_package(models.tiny_eagle3_draft(), folder / "draft")


def opened(pair: tuple[Path, Path], passes: str = "") -> Graft:
    graft = ovgraft.load(target=pair[0], draft=pair[1])
    if passes:
        ovgraft.Pipeline(passes).run(graft)
    return graft


def outputs(found: checks.Verification) -> list[str]:
    return [output.output for comparison in found.comparisons for output in comparison.outputs]


def test_untouched_grafts_are_compared_model_by_model(dflash: tuple[Path, Path]) -> None:
    found = checks.compare_grafts(opened(dflash), opened(dflash), steps=1)
    assert found.same
    assert [comparison.subject for comparison in found.comparisons] == ["target", "draft"]


@pytest.mark.parametrize("until", range(2, 6))
def test_every_stage_of_a_dflash_graft_equals_the_ungrafted_pair(dflash: tuple[Path, Path], until: int) -> None:
    passes = ",".join(DFLASH.split(",")[:until])
    found = checks.compare_grafts(opened(dflash), opened(dflash, passes), steps=3)
    assert found.same, found
    assert max(output.max_abs for comparison in found.comparisons for output in comparison.outputs) <= 1e-5
    if until == 5:
        assert outputs(found) == ["target logits", "draft logits"]


def test_an_eagle3_graft_equals_the_ungrafted_pair(eagle3: tuple[Path, Path]) -> None:
    found = checks.compare_grafts(opened(eagle3), opened(eagle3, EAGLE3), steps=2)
    assert found.same, found
    assert outputs(found) == ["target logits", "draft logits", "draft d2t"]


def test_the_whole_graft_of_a_vision_language_package(tmp_path: Path) -> None:
    language = models.tiny_decoder(layers=4, inputs_embeds=True)
    others = {"openvino_text_embeddings_model": models.tiny_text_embeddings()}
    target = models.write_package(language, tmp_path / "t", name="openvino_language_model", others=others)
    pair = target, models.write_package(models.tiny_dflash_draft(), tmp_path / "d")
    found = checks.compare_grafts(opened(pair), opened(pair, DFLASH), steps=1)
    assert found.same
    assert outputs(found) == ["target logits", "draft logits", "inputs_embeds"]


def test_scale_multiplier_and_soft_cap_of_the_draft_count(tmp_path: Path) -> None:
    draft = models.tiny_dflash_draft()
    for name, value in {
        "input_embedding_scale": "2.5",
        "output_multiplier": "0.5",
        "final_logit_softcapping": "3",
    }.items():
        draft.set_rt_info(value, ["dflash", name])
    pair = (
        models.write_package(models.tiny_decoder(layers=4), tmp_path / "t"),
        models.write_package(draft, tmp_path / "d"),
    )
    assert checks.compare_grafts(opened(pair), opened(pair, DFLASH), steps=1).same
    forgotten = opened(pair, DFLASH)
    plain = opened(pair)
    ir.delete(plain.package("draft").model, ("dflash", "output_multiplier"))
    found = checks.compare_grafts(plain, forgotten, steps=0)
    assert [output.same for output in found.comparisons[0].outputs] == [True, False]


def wrong_layer(graft: Graft) -> None:
    """Expose another layer than the record says."""
    target = graft.target.model
    exposed = next(result for result in target.get_results() if "last_hidden_state" in result.output(0).names)
    structure = decoder.read_decoder(target)
    joined = exposed.input_value(0).get_node()
    joined.input(0).replace_source_output(structure.layers[1].output)


def wrong_order(graft: Graft) -> None:
    """The right layers, side by side in another order."""
    target = graft.target.model
    exposed = next(result for result in target.get_results() if "last_hidden_state" in result.output(0).names)
    joined = exposed.input_value(0).get_node()
    first, second = joined.input_value(0), joined.input_value(1)
    joined.input(0).replace_source_output(second)
    joined.input(1).replace_source_output(first)


@pytest.mark.parametrize("mistake", [wrong_layer, wrong_order])
def test_wrong_states_are_found(dflash: tuple[Path, Path], mistake: Callable[[Graft], None]) -> None:
    graft = opened(dflash, "expose-hidden-states")
    mistake(graft)
    ovgraft.Pipeline("move-fc").run(graft)
    found = checks.compare_grafts(opened(dflash), graft, steps=1)
    assert not found.same
    assert [output.same for output in found.comparisons[0].outputs] == [True, False]
    with pytest.raises(MismatchError) as error:
        found.require()
    assert "draft last_hidden_state differs" in error.value.reasons[0].message


def test_a_target_that_lost_an_output_is_told(dflash: tuple[Path, Path]) -> None:
    before, after = opened(dflash), opened(dflash, "expose-hidden-states,move-fc")
    for graft in (before, after):
        model = graft.target.model
        model.add_results([ir.make_result(decoder.read_lm_head(model).hidden, "more")])
    lost = after.target.model
    lost.remove_result(next(result for result in lost.get_results() if "more" in result.output(0).names))
    (found,) = checks.compare_grafts(before, after, steps=0).comparisons
    assert found.only_a == ("target more",)
    assert found.only_b == ()


def test_another_fc_is_found(dflash: tuple[Path, Path], tmp_path: Path) -> None:
    other = models.write_package(models.tiny_dflash_draft(n=3, target_layer_ids=(0, 2, 3), seed=9), tmp_path / "d")
    found = checks.compare_grafts(opened(dflash), opened((dflash[0], other), DFLASH), steps=0)
    assert not found.same


def test_half_a_graft_does_not_fit(dflash: tuple[Path, Path]) -> None:
    half = opened(dflash, DFLASH)
    mixed = Graft(half.target, opened(dflash).draft)
    with pytest.raises(MismatchError, match="do not fit the draft") as error:
        checks.compare_grafts(opened(dflash), mixed)
    assert (error.value.expected, error.value.found) == ("last_hidden_state of width 96", 32)


def test_a_missing_draft_is_said(dflash: tuple[Path, Path]) -> None:
    found = checks.compare_grafts(opened(dflash), ovgraft.load(target=dflash[0]), steps=0)
    assert found.same
    assert "draft" in found.notes[0]


def test_the_hook_form(dflash: tuple[Path, Path]) -> None:
    graft = opened(dflash)
    graft.target.model, graft.package("draft").model
    before = graft.snapshot()
    ovgraft.Pipeline(DFLASH).run(graft)
    assert checks.compare_grafts(checks.graft_of(before, graft), graft, steps=0).same


def test_zoo_pairs_equal_before_and_after(zoo: Callable[[str], Path]) -> None:
    for draft, passes in (("qwen3_dflash_draft-int4", DFLASH), ("qwen3_dflash_draft_sliding", DFLASH)):
        pair = zoo("qwen3"), zoo(draft)
        found = checks.compare_grafts(opened(pair), opened(pair, passes), steps=2)
        assert found.same, found
        assert np.all([output.max_abs <= 1e-5 for output in found.comparisons[0].outputs])
