"""Blocks proposed with a head's IR against the walks in numpy, and a pair measured with and without its head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovgraft.checks.head_walk import HeadWalk, best_walk
from ovgraft.checks.pair import Taps
from ovgraft.checks.speculate import Speculator
from ovgraft.drafts import markov, reference
from ovgraft.drafts.contract import FileName
from ovgraft.errors import MismatchError
from ovgraft.passes.build_draft import BuildDraft
from ovgraft.passes.pack_markov_head import PackMarkovHead
from tests import models, pairs
from tests.drafts import checkpoints
from tests.drafts.building import running

NAMES = ["deepspec_vanilla", "deepspec_gated", "deepspec_rnn", "minicpm_pruned", "speculators_dspark", "zlab_dflash2"]
ROWS = 7


@pytest.mark.parametrize("walk", ["dense", "lattice"])
@pytest.mark.parametrize("name", NAMES)
def test_a_block_is_the_walk_in_numpy(tmp_path: Path, name: str, walk: Any) -> None:
    checkpoint = running.tiny(tmp_path, name)
    weights, spec = markov.read_head_weights(checkpoint), checkpoint.spec
    head = markov.build_head(weights, top_k=5 if spec.head.top_k else None)
    missing = {"deepspec_rnn": "lattice", "zlab_dflash2": "dense"}.get(name)
    assert best_walk(head) == ("dense" if name == "deepspec_rnn" else "lattice")
    d2t = checkpoint.weights.tensor("d2t") if spec.vocabulary.pruned else None
    if walk == missing:
        with pytest.raises(MismatchError, match=f"has no {walk} walk"):
            HeadWalk(head, walk, d2t)
        return
    random = np.random.default_rng(0)
    logits = random.standard_normal((ROWS, spec.vocabulary.draft_size)).astype(np.float32)
    hidden = random.standard_normal((ROWS, checkpoints.HIDDEN)).astype(np.float32)
    found = HeadWalk(head, walk, d2t).tokens(logits, hidden, 9)

    rows = logits if d2t is None else reference.to_target_vocabulary(logits, d2t, checkpoints.VOCAB)
    formulas, seen = weights.reference(), hidden if spec.head.type.reads_hidden else None
    if walk == "dense":
        expected = reference.walk_dense(formulas, rows, 9, seen).tokens
    else:
        ids, edges = reference.lattice(formulas, rows, np.array([9]), np.array([0, ROWS]), 5, seen)
        expected = reference.walk_lattice(ids, edges, checkpoints.VOCAB).tokens
    assert found.tolist() == expected
    assert found.tolist() != rows.argmax(-1).tolist()


@pytest.mark.parametrize("name", ["modelopt", "speculators_dspark", "zlab_dflash2"])
def test_a_pair_is_measured_with_its_head(tmp_path: Path, name: str) -> None:
    target = models.write_package(models.tiny_decoder(6, 16, 64, 2, 1), tmp_path / "target")
    graft = pairs.open_pair(target, running.tiny(tmp_path, name).path)
    pairs.run_passes(graft, BuildDraft())
    speculator = Speculator(graft, Taps(checkpoints.LAYER_IDS), 4)
    texts = [speculator.write([5, 9, 3], 12)]
    with pytest.raises(MismatchError, match="no Markov head to walk with"):
        speculator.measure(texts, "lattice")
    pairs.run_passes(graft, PackMarkovHead())
    found = speculator.measure(texts, "lattice")
    assert found.windows > 0
    assert graft.package("draft").get(FileName.MARKOV_HEAD) is not None
