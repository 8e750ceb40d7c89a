"""Paged against stateful decoding, the paged-attention pass against the native one, and what moving the FC saves."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino._offline_transformations import paged_attention_transformation

import ovgraft
from benchmarks import measure
from ovgraft import ir
from ovgraft.checks.paged_runner import PagedRunner, Rows
from ovgraft.passbase import Context
from ovgraft.passes import PagedAttention
from tests import models, support

PROMPT, STEPS, SEQUENCES = 64, 24, 8
TURNS = 5


def rows(folder: Path) -> list[measure.Row]:
    """All lines of the table.

    Args:
        folder: Takes a model the size of SmolLM2-135M.
    """
    with tempfile.TemporaryDirectory(dir=folder) as name:
        target = models.write_package(_smollm2_sized(), Path(name) / "target")
        draft = models.write_package(_draft(), Path(name) / "draft")
        return [*_decoding(target), _converting(target), *_moved_fc(target, draft)]


def _smollm2_sized() -> ov.Model:
    return models.tiny_decoder(layers=30, hidden=576, vocab=49152, heads=9, kv_heads=3, weights="f16")


def _draft() -> ov.Model:
    return models.tiny_dflash_draft(3, 576, 5, hidden=576, heads=9, kv_heads=3, target_layer_ids=(1, 8, 14, 21, 27))


def _decoding(target: Path) -> list[measure.Row]:
    stateful = ir.core().compile_model(ovgraft.load(target).target.model, "CPU").create_infer_request()
    graft = ovgraft.load(target)
    ovgraft.Pipeline("paged-attention").run(graft)
    runner = PagedRunner(graft.target.model, blocks=64)
    prompt = np.random.default_rng(0).integers(0, 49152, PROMPT)

    def alone() -> float:
        stateful.reset_state()
        stateful.infer(_feeds(prompt, 0))
        started = time.perf_counter()
        for step in range(STEPS):
            stateful.infer(_feeds(prompt[:1], PROMPT + step))
        return (time.perf_counter() - started) / STEPS

    def paged(count: int) -> float:
        for sequence in range(count):
            runner.step([Rows(sequence, {"input_ids": prompt})])
        started = time.perf_counter()
        for _ in range(STEPS):
            runner.step([Rows(sequence, {"input_ids": prompt[:1]}) for sequence in range(count)])
        spent = (time.perf_counter() - started) / STEPS
        for sequence in range(count):
            runner.drop(sequence)
        return spent

    best = _least(alone, lambda: paged(1), lambda: paged(SEQUENCES))
    return [
        _row("paged decode, one sequence, a token", best[1], best[0], "stateful", 1.05),
        _row(f"paged decode, {SEQUENCES} sequences, a token each", best[2], SEQUENCES * best[1], "one by one", 1 / 3),
    ]


def _feeds(tokens: Any, past: int) -> dict[str, Any]:
    rows = len(tokens)
    return {
        "input_ids": tokens[None],
        "attention_mask": np.ones((1, past + rows), np.int64),
        "position_ids": np.arange(past, past + rows)[None],
        "beam_idx": np.zeros(1, np.int32),
    }


def _converting(target: Path) -> measure.Row:
    def native() -> float:
        model = ovgraft.load(target).target.model
        started = time.perf_counter()
        paged_attention_transformation(model, False, False, True, False, False, False, False)
        return time.perf_counter() - started

    def checked() -> float:
        graft = ovgraft.load(target)
        assert graft.target.model is not None
        started = time.perf_counter()
        PagedAttention().apply(graft, Context())
        return time.perf_counter() - started

    best = _least(native, checked)
    return _row("paged-attention, checks included, 30 layers", best[1], best[0], "native transformation", 2.0)


def _moved_fc(target: Path, draft: Path) -> list[measure.Row]:
    """The same draft step, with the states of five layers coming in and with their projection coming in."""
    grafts = [ovgraft.load(target=target, draft=draft) for _ in range(2)]
    ovgraft.Pipeline("expose-hidden-states,move-fc").run(grafts[1])
    random = np.random.default_rng(0)
    block = random.standard_normal((1, 8, 576)).astype(np.float32)
    calls, sizes = [], []
    for graft in grafts:
        assert graft.draft is not None
        model = graft.draft.model
        width = model.input("hidden_states").get_partial_shape()[2].get_length()
        context = random.standard_normal((1, 4, width)).astype(np.float32)
        sizes.append(context.nbytes)
        calls.append(_draft_step(model, support.draft_feeds(context, block)))
    best = _least(*calls)
    share = f"{sizes[1]} B"
    return [
        measure.Row("hidden states to the draft, 4 rows", share, f"{sizes[0]} B", sizes[1] / sizes[0], 1 / 5),
        _row("draft step, FC in the target", best[1], best[0], "FC in the draft", 1.0),
    ]


def _draft_step(model: ov.Model, feeds: dict[str, Any]) -> Callable[[], float]:
    request = ir.core().compile_model(model, "CPU").create_infer_request()
    names = {name for port in model.inputs for name in port.get_names()}
    known = {name: value for name, value in feeds.items() if name in names}

    def step() -> float:
        spent = []
        for _ in range(20):
            request.reset_state()
            started = time.perf_counter()
            request.infer(known)
            spent.append(time.perf_counter() - started)
        return min(spent)

    return step


def _least(*calls: Callable[[], float]) -> list[float]:
    """The fastest turn of each; the sides take turns."""
    best = [float("inf")] * len(calls)
    for turn in range(TURNS + 1):
        for at, call in enumerate(calls):
            spent = call()
            if turn:  # the first turn warms up
                best[at] = min(best[at], spent)
    return best


def _row(what: str, found: float, reference: float, against: str, budget: float) -> measure.Row:
    return measure.Row(what, f"{found * 1e3:.2f} ms", f"{reference * 1e3:.2f} ms {against}", found / reference, budget)


if __name__ == "__main__":
    from benchmarks.__main__ import table

    with tempfile.TemporaryDirectory() as scratch:
        print(table(rows(Path(scratch))))
