"""DFlash-2's convolutions stay inside their block: nothing comes in from context rows, neighbours or the past."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest

from ovgraft.drafts.building.draft import build_draft
from ovgraft.drafts.checkpoint import Checkpoint
from ovgraft.drafts.reference.backbone import grouped_convolution
from ovgraft.drafts.weight_source import WeightSource
from tests.drafts.building import running
from tests.drafts.building.running import Array, PerRow, Sdpa, Step


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return running.tiny(tmp_path_factory.mktemp("convolution"), "zlab_dflash2")


@pytest.fixture(scope="module")
def paged(checkpoint: Checkpoint) -> ov.Model:
    return running.paged(checkpoint)


def rows(checkpoint: Checkpoint, paged: ov.Model, steps: dict[str, Step], seed: int = 0) -> Array:
    return PerRow(checkpoint, paged).step(steps, seed)["a"]["last_hidden_state"]


def test_what_context_rows_hold_as_tokens_is_not_read(checkpoint: Checkpoint, paged: ov.Model) -> None:
    (step,) = running.random_steps(checkpoint, [(5, 8)])
    one, other = (rows(checkpoint, paged, {"a": step}, seed) for seed in (0, 1))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_neighbour_is_not_read(checkpoint: Checkpoint, paged: ov.Model, order: str) -> None:
    """Its last block row, or its first context row, is the row beside a's block."""
    step, *neighbours = running.random_steps(checkpoint, [(1, 8), (1, 8), (1, 8)])
    found = []
    for neighbour in neighbours:
        steps = {"a": step, "b": neighbour}
        found.append(rows(checkpoint, paged, {request: steps[request] for request in order}))
    np.testing.assert_array_equal(found[0], found[1])


def test_context_reaches_a_block_through_attention_alone(checkpoint: Checkpoint) -> None:
    """With attention silenced, block rows do not know their context, in either form."""
    names = [name for name in checkpoint.weights if "o_proj" in name]
    silent = {name: replace(checkpoint.weights.info(name), read=zeros(checkpoint, name)) for name in names}
    tensors = [silent.get(name, checkpoint.weights.info(name)) for name in checkpoint.weights]
    deaf = replace(checkpoint, weights=WeightSource(checkpoint.path, tensors))
    first, second = running.random_steps(deaf, [(7, 8), (7, 8)])
    steps = [first, Step(second.hidden_states, first.block)]
    paged = running.paged(deaf)
    packed = [rows(deaf, paged, {"a": step}) for step in steps]
    stateful = [Sdpa(build_draft(deaf)).step(step)["last_hidden_state"] for step in steps]
    for one, other in (packed, stateful):
        np.testing.assert_array_equal(one, other)


def zeros(checkpoint: Checkpoint, name: str) -> Callable[[], Array]:
    tensor = checkpoint.weights.info(name)
    return lambda: np.zeros(tensor.shape, tensor.dtype)


def test_earlier_rows_of_the_block_are_read(checkpoint: Checkpoint, paged: ov.Model) -> None:
    """The control: row 0 reaches row 1 even where attention is causal and sees it anyway through another kernel."""
    (step,) = running.random_steps(checkpoint, [(5, 8)])
    moved = Step(step.hidden_states, np.vstack([step.block[:1] + 1, step.block[1:]]))
    difference = np.abs(rows(checkpoint, paged, {"a": step}) - rows(checkpoint, paged, {"a": moved}))
    assert difference[1].max() > 1e-3


def test_a_fresh_kernel_is_the_identity() -> None:
    """``base[0] = 1``, nothing else."""
    random = np.random.default_rng(0)
    x = random.standard_normal((9, 8))
    base, kernels = np.zeros((3, 8)), np.zeros((9, 3, 2))
    base[0] = 1
    np.testing.assert_array_equal(grouped_convolution(x, np.array([0, 4, 9]), base, kernels), x)


def test_a_packed_convolution_is_that_of_each_block() -> None:
    random = np.random.default_rng(0)
    x, base, kernels = random.standard_normal((9, 8)), random.standard_normal((3, 8)), random.standard_normal((9, 3, 2))
    begins = np.array([0, 3, 4, 9])
    packed = grouped_convolution(x, begins, base, kernels)
    for low, high in itertools.pairwise(begins):
        alone = grouped_convolution(x[low:high], np.array([0, high - low]), base, kernels[low:high])
        np.testing.assert_array_equal(packed[low:high], alone)
