"""The real DSpark pair: a checkpoint no exporter reads, on SmolLM2 from a GGUF file, without PyTorch anywhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovgraft import decoder, ir, load
from ovgraft.checks.doctor import RunOptions, diagnose
from ovgraft.checks.head_walk import HeadWalk, Walk
from ovgraft.checks.paged_runner import PagedRunner, Rows
from ovgraft.checks.pair import Taps
from ovgraft.checks.speculate import Speculator, Text
from ovgraft.drafts import markov, reference
from ovgraft.drafts.checkpoint import Checkpoint, read_checkpoint
from ovgraft.drafts.constant_rows import weight_rows
from ovgraft.drafts.contract import FileName
from ovgraft.graft import Graft
from ovgraft.pipeline import Pipeline, preset
from tests import support
from tests.drafts.building.running import tensors_of
from tests.genai import runtime
from tests.genai.test_smollm2 import PROMPTS, converted, draft, sample

pytestmark = [pytest.mark.genai, pytest.mark.slow]
__all__ = ["converted", "draft", "sample"]  # fixtures

LAYERS = (1, 8, 14, 21, 27)
BLOCK, NEW_TOKENS = 8, 40
WALKS: tuple[Walk, ...] = ("none", "dense")


@pytest.fixture(scope="module")
def checkpoint(shared: Path) -> Path:
    return shared / "models" / "smollm2-135m-dspark"


@pytest.fixture(scope="module")
def grafted(converted: Path, checkpoint: Path) -> Graft:
    """The finished pair."""
    return graft_of(converted, checkpoint)


def graft_of(target: Path, checkpoint: Path, text: str = preset("dspark").text) -> Graft:
    graft = load(target=target, draft=checkpoint)
    Pipeline(text).run(graft)
    return graft


@pytest.fixture(scope="module")
def plain(converted: Path, checkpoint: Path) -> Speculator:
    """The pair with nothing grafted: states are tapped, tables applied outside the draft."""
    return Speculator(graft_of(converted, checkpoint, "build-draft"), Taps(LAYERS), BLOCK)


@pytest.fixture(scope="module")
def prompts(converted: Path) -> list[list[int]]:
    """Token ids of chat messages."""
    tokenizer = runtime.genai.Tokenizer(str(converted))
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
        for prompt in PROMPTS[:3]
    ]
    return [tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist() for text in texts]


@pytest.fixture(scope="module")
def texts(plain: Speculator, prompts: Sequence[Sequence[int]]) -> list[Text]:
    """The prompts, continued greedily by the target."""
    return [plain.write(prompt, NEW_TOKENS) for prompt in prompts]


@pytest.fixture(scope="module")
def finished(grafted: Graft) -> Speculator:
    return Speculator(grafted, Taps(LAYERS), BLOCK)


@pytest.fixture(scope="module")
def per_step(finished: Speculator, texts: Sequence[Text]) -> dict[Walk, float]:
    """Tokens per target call by the way the head is walked."""
    return {walk: finished.measure(texts, walk).tokens_per_step for walk in ("none", "dense", "lattice")}


@pytest.fixture(scope="module")
def formulas(checkpoint: Path, grafted: Graft) -> Formulas:
    return Formulas(read_checkpoint(checkpoint), grafted)


@pytest.mark.parametrize("walk", ["dense", "lattice"])
def test_proposals_are_the_references(
    grafted: Graft, finished: Speculator, plain: Speculator, formulas: Formulas, texts: Sequence[Text], walk: Any
) -> None:
    """Grafted IRs against numpy at f64 on the target's own states, over whole blocks."""
    model = grafted.package("draft").get(FileName.MARKOV_HEAD)
    assert model is not None
    head = HeadWalk(model, walk)
    for text in texts:
        ours = head.tokens(finished.block(text)["logits"][0], None, text.tokens[text.prompt])
        states = plain.block(text)["hidden_states"][0]
        assert ours.tolist() == formulas.propose(states, text.tokens[text.prompt], walk)


class Formulas:
    """Backbone and head in numpy, with the target's tables."""

    def __init__(self, checkpoint: Checkpoint, graft: Graft) -> None:
        spec = replace(checkpoint.spec, own_embedding=False, own_lm_head=False)
        self._spec, self._head = spec, markov.read_head_weights(checkpoint).reference()
        self._backbone = reference.ReferenceBackbone(spec.backbone, tensors_of(checkpoint))
        embedding, head = decoder.read_embedding(graft.target.model), decoder.read_lm_head(graft.target.model)
        self._tables = [table(output) for output in (embedding.table, head.weight)]

    def propose(self, states: np.ndarray[Any, Any], anchor: int, walk: Walk) -> list[int]:
        ids = np.full(BLOCK, self._spec.mask_token_id)
        ids[0] = anchor
        rows = self._backbone.step(reference.ReferenceCache(), states, self._tables[0][ids])
        logits = rows @ self._tables[1].T
        if walk == "dense":
            return reference.walk_dense(self._head, logits, anchor).tokens
        begins = np.array([0, BLOCK])
        candidates, edges = reference.lattice(self._head, logits, np.array([anchor]), begins, 64)
        return reference.walk_lattice(candidates, edges, logits.shape[1]).tokens


def table(output: Any) -> np.ndarray[Any, Any]:
    """A weight of the target as f64 rows."""
    root = ir.weight_root(output)
    assert root is not None
    return weight_rows(root, 0).read(0, output.get_shape()[0]).astype(np.float64)


@pytest.mark.parametrize("walk", ["dense", "lattice"])
def test_the_target_accepts_what_it_was_trained_for(
    per_step: dict[Walk, float], walk: Walk, record_property: Any
) -> None:
    record_property("tokens_per_step", per_step[walk])
    assert per_step[walk] > 1.5
    assert per_step[walk] > per_step["none"] + 0.1  # the head is what makes a DSpark draft


def test_row_offset_1_is_rejected_and_doctor_says_why(
    converted: Path,
    checkpoint: Path,
    grafted: Graft,
    finished: Speculator,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Text],
    tmp_path: Path,
) -> None:
    """The same weights read a row off run; what their rows say is next to nothing then.

    With the head less is lost: it is a bigram, and the token after the anchor is the same whatever the row.
    """
    shutil.copytree(checkpoint, tmp_path / "dspark")
    config = json.loads((checkpoint / "config.json").read_text())
    (tmp_path / "dspark" / "config.json").write_text(json.dumps(config | {"candidate_position_offset": 1}))
    wrong = graft_of(converted, tmp_path / "dspark")
    pairs = [
        Speculator(graft, Taps(LAYERS), BLOCK - 1, like=finished)  # one target with one FC
        for graft in (grafted, wrong)
    ]
    drafted = {walk: [pair.measure(texts, walk).tokens_per_step - 1 for pair in pairs] for walk in WALKS}
    assert drafted["none"][1] < 0.6 * drafted["none"][0]
    assert drafted["dense"][1] < 0.85 * drafted["dense"][0]

    options = RunOptions(prompts=tuple(map(tuple, prompts[:2])), new_tokens=32)
    found = diagnose(load(target=converted, draft=tmp_path / "dspark"), run=options)
    answers = {check.id: check.answer for check in found.checks}
    assert "checkpoints of this format mean 0" in answers["candidate-offset"].text
    assert answers["acceptance"].status == "warn"
    assert "with candidate offset 0 instead of 1" in answers["acceptance"].text


def test_the_paged_pair_proposes_the_same(
    converted: Path, checkpoint: Path, finished: Speculator, texts: Sequence[Text]
) -> None:
    paged = graft_of(converted, checkpoint, preset("dspark-paged").text)
    target, drafting = (
        PagedRunner(package.model, support.PARITY) for package in (paged.target, paged.package("draft"))
    )
    for text in texts[:2]:
        prompt = np.array(text.tokens[: text.prompt])
        states = target.step([Rows(text, {"input_ids": prompt})])[0]["last_hidden_state"]
        ids = np.full(len(prompt) + BLOCK, 17)
        ids[len(prompt)] = text.tokens[text.prompt]
        rows = {
            "input_ids": ids,
            "hidden_states": np.vstack([states, np.zeros((BLOCK, states.shape[1]), np.float32)]),
            "token_type_ids": np.repeat([0, 1], [len(prompt), BLOCK]),
        }
        found = drafting.step([Rows(text, rows)])[0]["logits"][len(prompt) :]
        expected = finished.block(text)["logits"][0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=5e-3)
        np.testing.assert_array_equal(found.argmax(-1), expected.argmax(-1))
