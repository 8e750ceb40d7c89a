"""One packed step of the paged per-row draft for eight requests against eight steps for one each."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import openvino as ov

from benchmarks import measure
from ovgraft.checks.paged_runner import PagedRunner, Rows
from ovgraft.drafts.building.draft import build_draft
from ovgraft.drafts.checkpoint import Checkpoint, read_checkpoint
from ovgraft.graft import Graft
from ovgraft.passbase import Context
from ovgraft.passes.paged_attention import PagedAttention
from tests.drafts import checkpoints

REQUESTS, CONTEXT, BLOCK, PAST = 8, 4, 7, 64
WARMUP, TURNS = 3, 40


class _Draft:
    """What the pass needs of a graft."""

    def __init__(self, model: ov.Model) -> None:
        self.model = model

    def package(self, role: str) -> _Draft:
        return self


def rows(folder: Path) -> list[measure.Row]:
    """All lines of the table.

    Args:
        folder: Takes two small checkpoints.
    """
    sizes = {
        "2 layers 64 wide": ({"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}, 1 / 3),
        # 30 M weights keep both cores busy with one request's rows: what is left to gain is their reading
        "3 layers 576 wide": ({"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9}, None),
    }
    lines = []
    with tempfile.TemporaryDirectory(dir=folder) as name:
        for number, (what, (size, budget)) in enumerate(sizes.items()):
            checkpoint = _checkpoint(Path(name) / str(number), size)
            packed, single = _packed_and_single(checkpoint)
            lines.append(
                measure.Row(
                    f"per-row step of {REQUESTS} requests, {what} / {REQUESTS} steps of one",
                    f"{packed * 1e3:.1f} ms",
                    f"{single * 1e3:.1f} ms",
                    packed / single,
                    budget,
                )
            )
    return lines


def _checkpoint(folder: Path, size: dict[str, int]) -> Checkpoint:
    """A z-lab DFlash checkpoint of the given widths."""
    config, tensors = checkpoints.zlab_dflash()
    width, inner, heads = size["hidden_size"], size["intermediate_size"], size["num_attention_heads"]
    head_dim, random = width // heads, np.random.default_rng(0)
    widths = {
        checkpoints.HIDDEN: width,
        checkpoints.INTERMEDIATE: inner,
        checkpoints.HEADS * checkpoints.HEAD_DIM: width,
        checkpoints.KV_HEADS * checkpoints.HEAD_DIM: head_dim,
        len(checkpoints.LAYER_IDS) * checkpoints.HIDDEN: len(checkpoints.LAYER_IDS) * width,
    }
    for name, values in tensors.items():
        shape = tuple(widths[size] for size in values.shape)
        tensors[name] = (random.standard_normal(shape, np.float32) / shape[-1] ** 0.5).astype(checkpoints.BF16)
    config |= size | {"num_key_value_heads": 1, "head_dim": head_dim}
    return read_checkpoint(checkpoints.write_checkpoint(folder, config, tensors))


def _packed_and_single(checkpoint: Checkpoint) -> tuple[float, float]:
    """Seconds of the fastest turn of each side; both take the same rows of the same requests."""
    graft = _Draft(build_draft(checkpoint, "per-row"))
    PagedAttention(model="draft").apply(cast(Graft, graft), Context())
    runner = PagedRunner(graft.model, blocks=128)
    random, best = np.random.default_rng(0), [float("inf")] * 2
    for request in range(REQUESTS):
        runner.step([_rows(checkpoint, request, PAST, random)])
    for turn in range(WARMUP + TURNS):
        new = [_rows(checkpoint, request, CONTEXT, random) for request in range(REQUESTS)]
        for side, batches in enumerate(([new], [[each] for each in new])):
            started = time.perf_counter()
            for batch in batches:
                runner.step(batch)
            if turn >= WARMUP:
                best[side] = min(best[side], time.perf_counter() - started)
            for request in range(REQUESTS):  # both sides, and every turn, meet the same past
                runner.roll_back(request, PAST)
    return best[0], best[1]


def _rows(checkpoint: Checkpoint, request: int, context: int, random: np.random.Generator) -> Rows:
    spec = checkpoint.spec
    widths = {
        "inputs_embeds": spec.backbone.hidden_size,
        "hidden_states": len(spec.layer_ids) * spec.backbone.hidden_size,
    }
    values: dict[str, Any] = {
        name: random.standard_normal((context + BLOCK, width), np.float32) for name, width in widths.items()
    }
    return Rows(request, values | {"token_type_ids": np.repeat([0, 1], [context, BLOCK])}, keep=context)
