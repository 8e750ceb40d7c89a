"""Requests beside each other: padded and reordered in a batch, packed while they come and go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ovgraft.drafts.building.draft import build_draft
from ovgraft.drafts.checkpoint import Checkpoint
from tests import support
from tests.drafts import checkpoints
from tests.drafts.building import running
from tests.drafts.building.running import Numpy, PerRow, Sdpa, Step

TOLERANCE = 3e-5
MIXED = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 17,
    "use_sliding_window": True,
}


def mixed(folder: Path, name: str) -> Checkpoint:
    """A window and no window, causal and not; Gemma-4 drafts have full layers only."""

    def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
        if "gemma4" not in name:
            config |= MIXED

    return running.tiny(folder, name, edit)


@pytest.mark.parametrize("name", ["zlab_dflash", "zlab_dflash2", "deepspec_gemma4"])
def test_a_padded_batch_is_its_requests_alone(tmp_path: Path, name: str) -> None:
    """Request b has two context rows less, and in the second call the beams change places."""
    checkpoint = mixed(tmp_path, name)
    output, compiled = running.output_name(checkpoint), support.compile_parity(build_draft(checkpoint))
    alone = {request: Sdpa(compiled) for request in "ab"}
    steps = dict(zip("ab", running.random_steps(checkpoint, [(6, 8), (4, 8)]), strict=True))
    more = dict(zip("ab", running.random_steps(checkpoint, [(3, 8), (3, 8)], seed=1), strict=True))
    expected = [{each: alone[each].step(call[each])[output] for each in "ab"} for call in (steps, more)]
    request = compiled.create_infer_request()

    first = np.pad(steps["b"].hidden_states, ((2, 0), (0, 0)), constant_values=3)  # where nobody looks
    feeds = support.draft_feeds(
        np.stack([steps["a"].hidden_states, first]), np.stack([steps["a"].block, steps["b"].block])
    )
    feeds["attention_mask"][1, :2] = 0
    feeds["position_ids"][1] = np.maximum(np.arange(14) - 2, 0)
    request.infer(feeds)
    rows = request.get_tensor(output).data
    for found, each in zip(rows, "ab", strict=True):
        np.testing.assert_allclose(found, expected[0][each], rtol=0, atol=TOLERANCE)

    feeds = support.draft_feeds(
        np.stack([more["b"].hidden_states, more["a"].hidden_states]),
        np.stack([more["b"].block, more["a"].block]),
        past=6,
    )
    feeds["attention_mask"][0, :2] = 0
    feeds["position_ids"][0] -= 2
    feeds["beam_idx"][:] = (1, 0)
    request.infer(feeds)
    rows = request.get_tensor(output).data
    for found, each in zip(rows, "ba", strict=True):
        np.testing.assert_allclose(found, expected[1][each], rtol=0, atol=TOLERANCE)


TURNS = (
    {"a": (33, 16), "b": (1, 1), "c": (5, 0)},
    {"c": (2, 7), "b": (40, 2)},
    {"d": (150, 8), "a": (1, 33), "c": (1, 1)},
    {"b": (1, 16), "e": (3, 2), "a": (6, 7), "d": (1, 0)},
)
"""Request -> context and block rows of a turn, in the order they are packed."""


@pytest.mark.parametrize("name", ["zlab_dflash", "zlab_dflash2", "deepspec_gemma4"])
def test_requests_come_and_go(tmp_path: Path, name: str) -> None:
    """Any order, any lengths, context rolled back and written anew, pages of a request that ended used again."""
    checkpoint = mixed(tmp_path, name)
    output, packed = running.output_name(checkpoint), PerRow(checkpoint, running.paged(checkpoint))
    formulas: dict[str, Numpy] = {}
    for turn in range(2 * len(TURNS)):
        sizes = TURNS[turn % len(TURNS)]
        steps = dict(zip(sizes, running.random_steps(checkpoint, list(sizes.values()), seed=turn), strict=True))
        found = packed.step(steps, seed=turn)
        for request, step in steps.items():
            expected = formulas.setdefault(request, Numpy(checkpoint)).step(step)
            np.testing.assert_allclose(found[request][output], expected, rtol=0, atol=TOLERANCE)
        if turn == 2:
            packed.runner.drop("c")
            del formulas["c"]
        if turn == 5:  # some of a's committed context was wrong
            packed.runner.roll_back("a", 35)
            cache = formulas["a"].cache
            cache.keys, cache.values = ([rows[:35] for rows in each] for each in (cache.keys, cache.values))


@pytest.mark.parametrize("name", ["zlab_dflash", "deepspec_vanilla", "deepspec_gemma4"])
def test_a_block_may_follow_another_where_nothing_is_convolved(tmp_path: Path, name: str) -> None:
    """Two blocks drafted again without a new context row lie side by side, and are not one."""
    checkpoint = mixed(tmp_path, name)
    output, packed = running.output_name(checkpoint), PerRow(checkpoint, running.paged(checkpoint))
    formulas = {request: Numpy(checkpoint) for request in "ab"}
    for turn, sizes in enumerate([((9, 8), (9, 8)), ((0, 8), (0, 8)), ((0, 7), (2, 7))]):
        steps: dict[str, Step] = dict(zip("ab", running.random_steps(checkpoint, sizes, seed=turn), strict=True))
        found = packed.step(steps)
        for request, step in steps.items():
            expected = formulas[request].step(step)
            np.testing.assert_allclose(found[request][output], expected, rtol=0, atol=TOLERANCE)
