"""doctor --run: what is accepted, and why nothing is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ovgraft
from ovgraft import ir
from ovgraft.checks.doctor import RunOptions, diagnose, rows
from ovgraft.checks.doctor.result import not_applicable
from ovgraft.checks.paged_runner import PagedRunner, Rows
from ovgraft.checks.pair import Taps, TargetSide
from ovgraft.checks.speculate import random_prompts, unmeasurable
from ovgraft.errors import SpecError
from ovgraft.graft import Graft, Package
from tests import agreeing, models
from tests.checks.doctor_pairs import COUNTING, RUN, WIDTH, counting_target, echo_checkpoint, opened, pair, statuses

SHORT = RunOptions(count=1, new_tokens=8)
RAN = ("build", "finite-block", "per-row", "acceptance")


@pytest.fixture(scope="module")
def copying() -> agreeing.Target:
    return agreeing.copying_target(4)


def copying_pair(folder: Path, target: agreeing.Target, fitted_to: tuple[int, ...], says: tuple[int, ...]) -> Graft:
    """A draft fitted to the states of some layers, whose metadata names these or others."""
    draft = agreeing.dflash_draft(target, fitted_to)
    draft.set_rt_info(",".join(map(str, says)), ["dflash", "target_layer_ids"])
    config = {"model_type": "qwen3", "vocab_size": agreeing.VOCABULARY, "block_size": 5}
    return pair(folder, target=target.model, draft=draft, config=config)


def options(target: agreeing.Target) -> RunOptions:
    return RunOptions(prompts=tuple(map(tuple, target.prompts()[:3])), new_tokens=8)


def test_what_is_accepted(tmp_path: Path, copying: agreeing.Target) -> None:
    found = diagnose(copying_pair(tmp_path, copying, (0, 1, 2), (0, 1, 2)), run=options(copying))
    assert statuses(found) == {}
    numbers = found["acceptance"].answer.numbers
    assert numbers["tokens_per_step"] == 5.0
    assert numbers["accepted_by_position"] == [1.0] * 4
    assert found["per-row"].answer.status == "pass"
    assert found.ran


@pytest.mark.parametrize(
    "text", ["expose-hidden-states,move-fc", "expose-hidden-states,move-fc,attach-embedding,attach-lm-head"]
)
def test_a_graft_is_accepted_alike(tmp_path: Path, copying: agreeing.Target, text: str) -> None:
    graft = copying_pair(tmp_path, copying, (0, 1, 2), (0, 1, 2))
    ovgraft.Pipeline(text).run(graft)
    assert diagnose(graft, run=options(copying))["acceptance"].answer.numbers["tokens_per_step"] == 5.0


def counting_pair(folder: Path, **keys: Any) -> Graft:
    models.write_package(counting_target(), folder / "target")
    echo_checkpoint(folder / "draft", **keys)
    return opened(folder)


def test_the_layers_are_counted_by_another_convention(tmp_path: Path) -> None:
    answer = diagnose(counting_pair(tmp_path, target_layer_ids=[1]), run=RUN)["acceptance"].answer
    assert answer.status == "warn"
    assert answer.text.startswith("1.040 tokens per step")
    assert {reason.code for reason in answer.evidence} == {"wrong-layer"}
    said = "with layers 0, one further down: 2.000 tokens per step instead of 1.040"
    assert answer.evidence[0].message == said
    assert "another convention" in answer.advice


def test_exactly_one_without_a_cause_that_can_be_measured(tmp_path: Path) -> None:
    """A draft of another model: noise from all layers."""
    graft = counting_pair(tmp_path)
    ovgraft.Pipeline("build-draft").run(graft)
    model = graft.package("draft").model
    norm = next(node for node in model.get_ordered_ops() if node.get_friendly_name() == "self.norm.weight")
    other = ir.opset.constant(-np.ones(norm.get_output_shape(0)), norm.get_output_element_type(0))
    for port in list(norm.output(0).get_target_inputs()):
        port.replace_source_output(other.output(0))
    answer = diagnose(graft, run=RUN)["acceptance"].answer
    assert answer.status == "warn"
    tried = answer.numbers["tried"]
    assert isinstance(tried, list)
    assert answer.text == (
        "exactly 1.000 tokens per step over 26 steps: nothing was accepted; "
        f"{len(tried)} other readings get no more accepted"
    )
    assert {"candidate offset 1 instead of 0", "layers 1, one further up", "mask token 2 (eos_token_id)"} <= set(tried)
    assert answer.evidence == ()
    assert "likely causes: layer ids of another draft" in answer.advice
    assert "untrained draft" in answer.advice


def test_a_checkpoint_read_with_the_wrong_offset(tmp_path: Path) -> None:
    right = diagnose(counting_pair(tmp_path / "right"), run=RUN)
    assert statuses(right) == {}
    assert right["acceptance"].answer.numbers["tokens_per_step"] == 2.0
    wrong = diagnose(counting_pair(tmp_path / "wrong", candidate_position_offset=1), run=RUN)
    assert statuses(wrong) == {"candidate-offset": "warn", "acceptance": "warn"}
    assert "says offset 1" in wrong["candidate-offset"].answer.text
    answer = wrong["acceptance"].answer
    assert "exactly 1.000" in answer.text
    assert [reason.code for reason in answer.evidence] == ["wrong-offset"]
    assert "candidate offset 0 instead of 1" in answer.evidence[0].message
    assert answer.advice == "correct candidate_position_offset"


def test_an_ir_read_with_the_wrong_offset(tmp_path: Path) -> None:
    """Its graph drops the row that was the first candidate."""
    graft = counting_pair(tmp_path, candidate_position_offset=1)
    ovgraft.Pipeline("build-draft").run(graft)
    answer = diagnose(graft, run=RUN)["acceptance"].answer
    assert [reason.code for reason in answer.evidence] == ["wrong-offset"]


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    graft = pair(tmp_path)
    model = graft.package("draft").model
    weight = next(node for node in model.get_ordered_ops() if node.get_friendly_name() == "self.fc.weight")
    huge = ir.opset.constant(np.full(weight.get_output_shape(0), np.inf, np.float32))
    for port in list(weight.output(0).get_target_inputs()):
        port.replace_source_output(huge.output(0))
    found = diagnose(graft, run=SHORT)
    assert found["finite-block"].answer.status == "fail"
    assert found["acceptance"].answer.status == "not-checked"


def test_no_number_of_a_pair_that_does_not_fit(tmp_path: Path) -> None:
    found = diagnose(pair(tmp_path, draft=models.tiny_dflash_draft(n=2, target_layer_ids=(0, 9))), run=SHORT)
    assert {found[name].answer.status for name in RAN} == {"not-checked"}


@pytest.mark.parametrize(
    "text",
    [
        "per-row-draft",
        "per-row-draft,paged-attention{model=draft}",
        "expose-hidden-states,move-fc,attach-embedding,attach-lm-head,per-row-draft,paged-attention,paged-attention{model=draft}",
    ],
    ids=["per-row", "paged draft", "all of it"],
)
def test_a_pair_in_the_paged_form_is_accepted_alike(tmp_path: Path, copying: agreeing.Target, text: str) -> None:
    graft = copying_pair(tmp_path, copying, (0, 1, 2), (0, 1, 2))
    ovgraft.Pipeline(text).run(graft)
    found = diagnose(graft, run=options(copying))
    assert found["finite-block"].answer.status == "pass"
    assert found["per-row"].answer.status == "not-applicable"
    assert found["acceptance"].answer.numbers["tokens_per_step"] == 5.0


def test_a_per_row_form_that_gives_nan_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = PagedRunner.step

    def spoiled(runner: PagedRunner, batch: Sequence[Rows]) -> list[dict[str, NDArray[Any]]]:
        return [{name: values * np.float32(np.nan) for name, values in found.items()} for found in step(runner, batch)]

    monkeypatch.setattr(PagedRunner, "step", spoiled)
    answer = diagnose(pair(tmp_path), run=SHORT)["per-row"].answer
    assert answer.status == "fail"
    assert "differ by nan" in answer.text


def test_eagle3(zoo: Callable[[str], Path]) -> None:
    graft = Graft(Package(zoo("qwen3_12l")), Package(zoo("qwen3_12l_eagle3_draft")))
    found = diagnose(graft, run=SHORT)
    assert found.good
    assert found["finite-block"].answer.status == "pass"
    assert len(found["acceptance"].answer.numbers["accepted_by_position"]) == 4  # type: ignore[arg-type]


def test_the_pair_of_the_zoo_that_agrees(zoo: Callable[[str], Path]) -> None:
    graft = Graft(Package(zoo("qwen3_agree")), Package(zoo("qwen3_agree_dflash_draft")))
    found = diagnose(graft, run=replace(SHORT, new_tokens=16))
    assert found["acceptance"].answer.numbers["tokens_per_step"] == 8.0


def test_12_blocks_of_another_length_and_prompts_of_no_text_are_said(
    tmp_path: Path, copying: agreeing.Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "per_row", lambda *args: not_applicable("left out"))
    graft = copying_pair(tmp_path, copying, (0, 1, 2), (0, 1, 2))
    text = diagnose(graft, run=replace(options(copying), candidates=2))["acceptance"].answer.text
    assert "asked for 2 candidates, trained with 4" in text
    assert "random" not in text
    answer = diagnose(graft, run=RunOptions(count=1, new_tokens=8))["acceptance"].answer
    assert "steps on random prompts; accepted by position" in answer.text
    assert answer.numbers["random_prompts"] is True


def test_targets_that_tokens_alone_do_not_feed(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    graft = Graft(Package(zoo("gemma4")), Package(zoo("qwen3_dflash_draft")))
    assert "also reads per_layer_inputs" in (unmeasurable(graft) or "")
    alone = models.write_package(models.tiny_decoder(layers=1, inputs_embeds=True), tmp_path / "target")
    assert "no openvino_text_embeddings_model.xml" in (unmeasurable(Graft(Package(alone), graft.draft)) or "")
    assert unmeasurable(Graft(Package(zoo("qwen3")), graft.draft)) is None


def test_states_that_no_layer_gives(tmp_path: Path) -> None:
    """What enters layer 0 (DeepSpec's -1), and the last layer's output before its norm."""
    target = Package(models.write_package(counting_target(), tmp_path / "target"))
    side = TargetSide(target, [Taps((-1, 0)), Taps((2,)), Taps((2,), raw_last=True)], "it")
    feeds: dict[str, Any] = {"input_ids": np.array([[5, 9]]), "attention_mask": np.ones((1, 2), np.int64)}
    feeds |= {"position_ids": np.array([[0, 1]]), "beam_idx": np.zeros(1, np.int32)}
    outputs, (states, normed, raw) = side.step({0: feeds})[0]
    assert set(outputs) == {"logits"}
    np.testing.assert_array_equal(states[0, :, :WIDTH], np.eye(COUNTING, WIDTH)[[5, 9]])
    np.testing.assert_array_equal(states[0, :, WIDTH:], states[0, :, :WIDTH])
    norm = raw / np.sqrt((raw**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(normed, norm, rtol=1e-5)
    assert np.abs(raw - normed).max() > 0.1


def test_a_prompt_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="token 64; the target knows tokens 0 to 63"):
        diagnose(pair(tmp_path), run=RunOptions(prompts=((1, 64),)))
    with pytest.raises(SpecError, match="no device 'XPU'"):
        diagnose(pair(tmp_path / "again"), run=RunOptions(device="XPU"))


def test_random_prompts_come_from_the_seed() -> None:
    assert random_prompts(64, 2, 5, 0) == random_prompts(64, 2, 5, 0)
    assert random_prompts(64, 2, 5, 0) != random_prompts(64, 2, 5, 1)
