"""doctor --run on pairs of which nothing, or little, is accepted: the cause is measured and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

import ovgraft
from ovgraft import ir
from ovgraft.checks.doctor import RunOptions, diagnose, rows
from ovgraft.checks.doctor.causes import advice, harmful_head, shifted_rows
from ovgraft.checks.doctor.facts import read_pair
from ovgraft.checks.doctor.readings import all_readings, other_layers
from ovgraft.checks.doctor.result import Answer, not_applicable
from ovgraft.checks.draft_side import DraftCall, DraftSide
from ovgraft.checks.feeds import Call
from ovgraft.checks.head_walk import HeadWalk
from ovgraft.checks.pair import Taps
from ovgraft.checks.speculate import Acceptance, Speculator
from ovgraft.errors import Reason
from ovgraft.graft import Graft
from ovgraft.pipeline import preset
from tests import agreeing, models, pairs, support
from tests.checks.doctor_pairs import (
    COUNTING,
    RUN,
    WIDTH,
    counting_target,
    echo_checkpoint,
    opened,
    pair,
    statuses,
)
from tests.drafts.checkpoints import BF16

GRAFT = "expose-hidden-states,move-fc,attach-embedding,attach-lm-head"


@pytest.fixture(autouse=True)
def one_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """The per-row form has tests of its own, and takes as long to compile as all the rest."""
    monkeypatch.setattr(rows, "per_row", lambda *args: not_applicable("left out"))


@pytest.fixture(scope="module")
def copying() -> agreeing.Target:
    return agreeing.copying_target(4)


def copying_pair(folder: Path, target: agreeing.Target, says: str = "0,1,2") -> Graft:
    draft = agreeing.dflash_draft(target, (0, 1, 2))
    draft.set_rt_info(says, ["dflash", "target_layer_ids"])
    config = {"model_type": "qwen3", "vocab_size": agreeing.VOCABULARY, "block_size": 5}
    return pair(folder, target=target.model.clone(), draft=draft, config=config)


def acceptance(graft: Graft, target: agreeing.Target) -> Answer:
    options = RunOptions(prompts=tuple(map(tuple, target.prompts()[:3])), new_tokens=8)
    return diagnose(graft, run=options)["acceptance"].answer


def codes(answer: Answer) -> list[str]:
    return [reason.code for reason in answer.evidence]


FREE = np.diag(np.arange(WIDTH) >= COUNTING).astype(np.float32)


@pytest.mark.parametrize("passes", ["", GRAFT], ids=["ungrafted", "FC in the target"])
def test_the_layers_in_another_order(tmp_path: Path, passes: str) -> None:
    """The FC reads the first state only; layer 0 has nothing in it, layer 1 noise."""
    fc = np.hstack([FREE, 0 * FREE]).astype(BF16)
    graft = counting_pair(tmp_path, target_layer_ids=[0, 1], tensors={"fc.weight": fc})
    ovgraft.Pipeline("build-draft").run(graft)
    graft.package("draft").model.set_rt_info("1,0", ["dflash", "target_layer_ids"])
    if passes:
        ovgraft.Pipeline(passes).run(graft)
    answer = diagnose(graft, run=RUN)["acceptance"].answer
    assert "with layers 0, 1, in reverse order: 2.000 tokens per step instead of 1.040" in answer.text
    assert codes(answer)[0] == "wrong-order"
    assert answer.advice.startswith("correct the order of the layer ids")


def test_layers_one_too_far_up(tmp_path: Path, copying: agreeing.Target) -> None:
    answer = acceptance(copying_pair(tmp_path, copying, "1,2,3"), copying)
    assert codes(answer)[0] == "wrong-layer"
    assert "layers 0, 1, 2, one further down: 5.000 tokens per step" in answer.evidence[0].message


def constant(model: ov.Model, name: str, edit: Callable[[NDArray[np.float32]], None]) -> None:
    """Another constant in the place of the one that feeds a node, or has its name."""
    found = next(n for n in model.get_ordered_ops() if n.get_friendly_name() == name)
    values = np.array(found.data, np.float32)
    edit(values)
    other = ir.opset.constant(values)
    other.set_friendly_name(name)
    for port in list(found.output(0).get_target_inputs()):
        port.replace_source_output(other.output(0))


def test_another_mask_token(tmp_path: Path, copying: agreeing.Target) -> None:
    """The row of the one that is said drowns everything; a special token of the configs is as good as the right one."""
    graft = copying_pair(tmp_path, copying)
    drown = 900

    def loud(table: NDArray[np.float32]) -> None:
        table[drown] *= 1e6

    constant(graft.target.model, "self.model.embed_tokens.weight", loud)
    graft.package("draft").model.set_rt_info(str(drown), ["dflash", "mask_token_id"])
    answer = acceptance(graft, copying)
    assert codes(answer)[0] == "wrong-mask-token"
    assert "mask token 2 (eos_token_id): 5.000" in answer.text
    assert answer.advice.startswith("correct mask_token_id")


def test_the_mask_token_of_the_tokenizer_comes_first(tmp_path: Path, copying: agreeing.Target) -> None:
    graft = copying_pair(tmp_path, copying)
    tokenizer = {"added_tokens": [{"content": "<|MASK|>", "id": 7}, {"content": "<|x|>", "id": 8}]}
    (graft.package("draft").folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    readings = [other.what for other in all_readings(graft, read_pair(graft)) if other.code == "wrong-mask-token"]
    assert readings == ["mask token 7 (<|MASK|>)", "mask token 2 (eos_token_id)"]


def counting_pair(folder: Path, target: ov.Model | None = None, **keys: Any) -> Graft:
    models.write_package(target or counting_target(), folder / "target")
    echo_checkpoint(folder / "draft", **keys)
    return opened(folder)


def test_a_mask_row_that_was_never_trained_is_named(tmp_path: Path) -> None:
    """Nothing can measure the right one: it is in a file that is not there."""
    graft = counting_pair(tmp_path)
    ovgraft.Pipeline("build-draft").run(graft)
    constant(graft.target.model, "self.model.embed_tokens.weight", lambda table: table[60].fill(0))
    constant(graft.package("draft").model, "self.norm.weight", lambda weight: weight.fill(-1))
    answer = diagnose(graft, run=RUN)["acceptance"].answer
    assert "exactly 1.000" in answer.text
    assert codes(answer) == ["see-mask-token"]
    assert "mask token 60 is near zero" in answer.evidence[0].message
    assert answer.advice.startswith("look at mask-token first; likely causes:")


def test_another_embedding_scale(tmp_path: Path) -> None:
    """Some noise from layer 1, which rows of one times their length do not stand out of."""
    loud = np.random.default_rng(1).standard_normal((WIDTH, 32))
    noisy = {"layers.0.self_attn.o_proj.weight": (0.1 * loud).astype(BF16)}
    graft = counting_pair(tmp_path, target_layer_ids=[1], tensors=noisy)
    answer = diagnose(graft, run=RUN)["acceptance"].answer
    assert "wrong-scale" in codes(answer)
    assert any("embedding rows times 11.3137: 1.867" in reason.message for reason in answer.evidence)
    assert "correct input_embedding_scale" in answer.advice


def test_another_output_layer(tmp_path: Path) -> None:
    """A draft with a table of its own whose rows are one off."""
    graft = counting_pair(tmp_path)
    ovgraft.Pipeline("build-draft").run(graft)
    model = graft.package("draft").model
    hidden = next(result for result in model.get_results() if "last_hidden_state" in result.output(0).names)
    table = ir.opset.constant(np.roll(np.eye(COUNTING, WIDTH), 2, axis=0).astype(np.float32))
    logits = ir.opset.matmul(hidden.input_value(0), table, False, True)
    model.remove_result(hidden)
    hidden.input_value(0).set_names(set())
    model.add_results([ir.make_result(logits.output(0), "logits")])
    answer = diagnose(graft, run=RUN)["acceptance"].answer
    assert "wrong-lm-head" in codes(answer)
    assert any("the target's output layer: 2.000" in reason.message for reason in answer.evidence)


def eagle3_pair(folder: Path, target: agreeing.Target, layers: tuple[int, ...] = (2, 5, 7)) -> Graft:
    draft = agreeing.eagle3_draft(target, layers)
    draft.set_rt_info(",".join(map(str, layers)), ["hidden_layers_list"])
    return pair(folder, target=target.model.clone(), draft=draft, config={"vocab_size": agreeing.VOCABULARY})


@pytest.fixture(scope="module")
def deep() -> agreeing.Target:
    return agreeing.copying_target(10)


def test_eagle3_is_measured_as_a_chain(tmp_path: Path, deep: agreeing.Target) -> None:
    answer = acceptance(eagle3_pair(tmp_path, deep), deep)
    assert answer.numbers["accepted_by_position"] == [1.0] * 4
    assert answer.numbers["tokens_per_step"] == 5.0


def test_a_d2t_that_is_a_row_off(tmp_path: Path, deep: agreeing.Target) -> None:
    graft = eagle3_pair(tmp_path, deep)
    model = graft.package("draft").model
    result = next(result for result in model.get_results() if "d2t" in result.output(0).names)
    ids = result.input_value(0).get_node().data + np.arange(agreeing.DRAFT_VOCABULARY)
    wrong = ir.opset.constant(np.roll(ids, 1) - np.arange(len(ids)))
    wrong.output(0).set_names({"d2t"})
    result.input_value(0).set_names(set())
    result.input(0).replace_source_output(wrong.output(0))
    answer = acceptance(graft, deep)
    assert codes(answer)[0] == "wrong-d2t"
    assert "with d2t one row up: 5.000" in answer.evidence[0].message


def test_a_chain_is_that_of_the_grafted_models(tmp_path: Path) -> None:
    """Token for token what two grafted IRs give in a loop of three lines; nothing is cut or cached here."""
    target = models.write_package(models.tiny_decoder(layers=4, vocab=64), tmp_path / "target")
    draft = models.write_package(models.tiny_eagle3_draft(vocab=64, draft_vocab=64), tmp_path / "draft")
    plain, layers = pairs.open_pair(target, draft), (0, 1, 3)
    speculator = Speculator(plain, Taps(layers), 4)
    text = speculator.write([5, 9, 3, 17], 6)
    proposed = speculator.propose(text)

    graft = pairs.open_pair(target, draft)
    ovgraft.Pipeline("expose-hidden-states{layers=0,1,3},move-fc,expose-draft-hidden").run(graft)
    tokens = np.array([text.tokens[: text.prompt + 1]])
    states = support.run_decoder(graft.target.model, tokens)["last_hidden_state"][:, : text.prompt]
    model = pairs.compiled(graft.package("draft").model)
    expected, ids, calls = [], tokens[:, 1:], []
    for _ in range(4):
        calls.append((ids, states))
        outputs = pairs.run_eagle3(model, calls)[-1]
        best = int(outputs["logits"][0, -1].argmax())
        expected.append(best + int(outputs["d2t"][best]))
        ids, states = np.array([expected[-1:]]), outputs["last_hidden_state"][:, -1:]
    assert proposed.tolist() == expected
    assert len(set(expected)) > 1


def test_an_eagle3_draft_with_a_random_embedding_is_read_with_the_targets(tmp_path: Path) -> None:
    """What OpenVINO GenAI does on loading: exporters leave the table random when the checkpoint has none."""
    shared = np.random.default_rng(3).standard_normal((64, 32)).astype(np.float32)
    given = {"self.model.embed_tokens.weight": shared}
    target = models.tiny_decoder(layers=4, annotated=True, given=given)
    random, right = models.tiny_eagle3_draft(), models.tiny_eagle3_draft(given=given)
    for draft in (random, right):
        draft.set_rt_info("0,1,2", ["hidden_layers_list"])
    graft, wanted = pair(tmp_path / "a", target=target, draft=random), pair(tmp_path / "b", target=target, draft=right)
    assert diagnose(graft)["embedding"].answer.status == "warn"
    assert diagnose(wanted)["embedding"].answer.status == "pass"
    (other,) = [other for other in all_readings(graft, read_pair(graft)) if other.code == "wrong-embedding"]
    assert other.graft is not None
    states = np.random.default_rng(0).standard_normal((1, 5, 96)).astype(np.float32)
    call = {0: DraftCall(Call("draft", 0, 5), states, np.arange(5)[None])}
    found, expected = (DraftSide(each, ("logits",), "it").step(call)[0]["logits"] for each in (other.graft, wanted))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def headed_pair(folder: Path, scale: float) -> Graft:
    """The pair that counts, with a head that says the same with a weight, or the contrary."""
    one = np.eye(COUNTING, dtype=np.float32)
    head = {
        "markov_head.markov_w1.weight": one.astype(BF16),
        "markov_head.markov_w2.weight": (scale * np.roll(one, 1, axis=0)).astype(BF16),
    }
    return counting_pair(folder, markov_rank=COUNTING, tensors=head)


def test_a_head_is_measured_with_and_without(tmp_path: Path) -> None:
    """Rows know the token after the anchor only; the head knows what follows what."""
    found = diagnose(headed_pair(tmp_path, 30.0), run=RUN)
    assert statuses(found) == {}
    assert "openvino_markov_head_model: vanilla head of rank 64" in found["build"].answer.text
    answer = found["acceptance"].answer
    assert answer.numbers["walk"] == "lattice"
    assert answer.numbers["tokens_per_step"] == 5.0
    without = answer.numbers["without_head"]
    assert isinstance(without, dict)
    assert without["tokens_per_step"] == 2.0
    assert "2.000 without the Markov head (lattice walk)" in answer.text


def test_a_finished_paged_pair_is_measured_with_its_head(tmp_path: Path) -> None:
    graft = headed_pair(tmp_path, 30.0)
    ovgraft.Pipeline(preset("dspark-paged").text).run(graft)
    answer = diagnose(graft, run=RUN)["acceptance"].answer
    assert answer.numbers["walk"] == "lattice"
    assert answer.numbers["tokens_per_step"] == 5.0


def test_the_head_of_another_draft(tmp_path: Path) -> None:
    answer = diagnose(headed_pair(tmp_path, -30.0), run=RUN)["acceptance"].answer
    assert answer.status == "warn"
    assert codes(answer)[0] == "wrong-head"
    assert "with its Markov head 1.000 tokens per step are accepted, without it 2.000" in answer.text
    assert answer.advice.startswith("take the Markov head of this draft")


def test_a_head_without_a_scorer_walks_densely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graft = headed_pair(tmp_path, 30.0)
    ovgraft.Pipeline("build-draft,pack-markov-head,select-markov-computation{keep=dense}").run(graft)
    walks: list[str] = []
    make = HeadWalk.__init__

    def noted(self: HeadWalk, *args: Any, **options: Any) -> None:
        walks.append(args[1])
        make(self, *args, **options)

    monkeypatch.setattr(HeadWalk, "__init__", noted)
    answer = diagnose(graft, run=RUN)["acceptance"].answer
    assert answer.numbers["walk"] == "dense"
    assert answer.numbers["tokens_per_step"] == 5.0
    assert walks == ["dense"]


def test_a_head_that_helps_or_does_nothing_is_no_warning() -> None:
    def found(*accepted: int) -> Acceptance:
        return Acceptance(10, accepted, {-1: (0, 0), 0: accepted, 1: (0, 0)})

    assert harmful_head(found(9, 5), found(5, 2)) == ()
    assert harmful_head(found(5, 2), found(5, 3)) == ()
    (reason,) = harmful_head(found(1, 0), found(5, 2))
    assert reason.code == "wrong-head"


def test_other_layers_that_are_tried() -> None:
    tried = {other.taps.layers: other.code for other in other_layers((1, 9, 17, 25, 33), 36, "dflash") if other.taps}
    assert tried[(2, 10, 18, 26, 34)] == tried[(0, 8, 16, 24, 32)] == "wrong-layer"
    assert tried[(-1, 7, 15, 23, 31)] == "wrong-layer"
    assert tried[(33, 25, 17, 9, 1)] == "wrong-order"
    assert (1, 9, 17, 25, 33) not in tried
    spaced = [other for other in other_layers((5, 19, 33, 47, 60), 64, "dflash") if "trainer" in other.what]
    assert spaced[0].taps == Taps((1, 16, 31, 46, 61))
    raw = [other.taps for other in other_layers((0, 3), 4, "dflash") if other.taps and other.taps.raw_last]
    assert raw == [Taps((0, 3), raw_last=True)]
    eagle = {other.taps.layers for other in other_layers((1, 2, 3), 36, "eagle3") if other.taps}
    assert {(2, 18, 33), (1, 17, 32)} <= eagle


def test_advice_names_what_was_measured_else_what_is_left() -> None:
    measured = (Reason("wrong-order", "x"), Reason("wrong-offset", "y"), Reason("wrong-order", "z"))
    assert advice(measured, random_prompts=True) == (
        "correct the order of the layer ids; correct candidate_position_offset"
    )
    said = advice((), random_prompts=True)
    for cause in ("layer ids", "mask token", "mask row", "d2t", "Markov head", "chat template", "--prompts"):
        assert cause in said
    assert "random prompts" not in advice((), random_prompts=False)


def test_rows_that_are_right_for_their_neighbour() -> None:
    right = Acceptance(4, (4, 2), {-1: (0, 0), 0: (4, 3), 1: (0, 1)})
    assert shifted_rows(right) == ()
    late = Acceptance(4, (0, 0), {-1: (0, 0), 0: (0, 0), 1: (4, 3)})
    (reason,) = shifted_rows(late)
    assert "read with offset 1, its rows mean offset 0" in reason.message
    early = Acceptance(4, (0, 0), {-1: (4, 3), 0: (0, 0), 1: (0, 0)})
    assert "read with offset 0, its rows mean offset 1" in shifted_rows(early)[0].message
