"""Markov heads at full size on CPU: V 151,936, rank 256, bf16 tables. `python -m benchmarks.markov_head` prints them.

The sides of a ratio take turns in one process; a line has the medians of both and the median of the turns' ratios.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
from numpy.typing import NDArray

from benchmarks import measure
from ovgraft import ir
from ovgraft.drafts import markov
from ovgraft.drafts.checkpoint import read_checkpoint
from ovgraft.drafts.contract import Port
from ovgraft.drafts.spec import HeadType
from ovgraft.ir import copying, files, opset
from ovgraft.ir.save import write_model
from tests.drafts import checkpoints

VOCABULARY, RANK, TOP_K = 151_936, 256, 64
REQUESTS, ROWS = 8, 7
CONFIG = {"INFERENCE_PRECISION_HINT": "f32"}
WARMUP, TURNS = 3, 30
MOST_MIB = 400

Array = NDArray[Any]
Call = Callable[[], object]


def rows(folder: Path) -> list[measure.Row]:
    """All lines of the table.

    Args:
        folder: Takes a checkpoint of 155 MB and copies of it, on a disk that counts.
    """
    return [*_inference(), *_saving(folder)]


def _inference() -> list[measure.Row]:
    random = np.random.default_rng(0)
    model = markov.build_head(_random_head(random), top_k=TOP_K)
    dense, scorer = (_selected(model, keep) for keep in (markov.Computation.DENSE, markov.Computation.SCORER))
    logits = random.standard_normal((REQUESTS * ROWS, VOCABULARY), np.float32)
    anchors = random.integers(0, VOCABULARY, REQUESTS)
    begins = np.arange(0, REQUESTS * ROWS + 1, ROWS)

    def score(first: int, count: int) -> Call:
        feeds: dict[Any, Array] = {
            Port.DRAFT_LOGITS: logits[first * ROWS : (first + count) * ROWS],
            Port.ANCHOR_TOKEN_IDS: anchors[first : first + count],
            Port.BLOCK_BEGINS: begins[: count + 1],
        }
        return _call(scorer, feeds)

    step = _call(dense, {Port.PREV_TOKEN_IDS: anchors})
    steps = [_call(dense, {Port.PREV_TOKEN_IDS: anchors[i : i + 1]}) for i in range(REQUESTS)]
    bare = _call(_bare_matmul(model), {"x": random.standard_normal((1, RANK), np.float32)})
    packed, blocks = score(0, REQUESTS), [score(i, 1) for i in range(REQUESTS)]
    top_k = _call(_unstable_top_k(), {"x": logits})

    pairs = {
        ("dense step of 8 requests / 8 of one", 0.25): (step, _all(steps)),
        ("7 dense steps of one request / 7 MatMuls", 1.2): (_all([steps[0]] * ROWS), _all([bare] * ROWS)),
        ("scorer, 8 x 7 rows / 8 of 7", 1.0): (packed, _all(blocks)),
        ("scorer, 8 x 7 rows, K 64 / unstable TopK", 3.0): (packed, top_k),
    }
    return [_row(what, _in_turns(*calls), budget) for (what, budget), calls in pairs.items()]


def _saving(folder: Path) -> list[measure.Row]:
    """Two pairs of like things: into the page cache, and onto the disk."""
    source = _big_checkpoint(folder / "checkpoint")
    cached = measure.run("benchmarks.markov_head:save_cached", source, folder)
    safe = measure.run("benchmarks.markov_head:save_safely", source, folder)
    memory = max(cached.peak_mib, safe.peak_mib)
    return [
        _row("build and ov.save_model / cp", cached.value, 2.0),
        _row("build, safe save / cp, fsync", safe.value, 2.0),
        measure.Row(
            "markov head: build and save, private memory",
            f"{memory:.0f} MiB",
            f"{MOST_MIB} MiB",
            memory / MOST_MIB,
            1.0,
        ),
    ]


def save_cached(source: str, folder: str) -> list[list[float]]:
    """Milliseconds, turn by turn, to build a head and let OpenVINO save it, and to copy the checkpoint's file."""
    out = Path(folder) / "cached"

    def save() -> None:
        ov.save_model(_build(Path(source)), out / "head.xml", compress_to_fp16=False)

    return _against_copy(save, Path(source), out, sync=False)


def save_safely(source: str, folder: str) -> list[list[float]]:
    """The same with what a package is saved with: fsync, a digest, reading back; against a copy with fsync."""
    out = Path(folder) / "safe"

    def save() -> None:
        write_model(_build(Path(source)), out / "head.xml")

    return _against_copy(save, Path(source), out, sync=True)


def _build(source: Path) -> ov.Model:
    return markov.build_head(markov.read_head_weights(read_checkpoint(source)))


def _against_copy(save: Call, source: Path, out: Path, *, sync: bool) -> list[list[float]]:
    weights = source / "model.safetensors"

    def copy() -> None:
        copying.copy_file(weights, out / "copy")
        if sync:
            files.sync(out / "copy")

    times: list[list[float]] = [[], []]
    for _ in range(9):
        for work, taken in zip((save, copy), times, strict=True):
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            os.sync()  # nobody pays for what the one before left unwritten
            start = time.perf_counter()
            work()
            taken.append((time.perf_counter() - start) * 1e3)
    shutil.rmtree(out)
    return times


def _big_checkpoint(folder: Path) -> Path:
    """A DSpark checkpoint that is nearly all head; written once."""
    if not folder.exists():
        config, tensors = checkpoints.specforge()
        config |= {"vocab_size": VOCABULARY}
        config["dflash_config"] |= {"markov_rank": RANK, "enable_confidence_head": False}
        weights = _random_head(np.random.default_rng(0))
        tensors = {name: value for name, value in tensors.items() if not name.startswith("confidence")}
        tensors |= {"markov_head.markov_w1.weight": weights.w1, "markov_head.markov_w2.weight": weights.w2}
        checkpoints.write_checkpoint(folder, config, tensors)
    return folder


def _random_head(random: np.random.Generator) -> markov.HeadWeights:
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    w1, w2 = ((random.standard_normal((VOCABULARY, RANK), np.float32) / 16).astype(bfloat16) for _ in range(2))
    return markov.HeadWeights(HeadType.VANILLA, VOCABULARY, w1, w2)


def _selected(model: ov.Model, keep: markov.Computation) -> ov.Model:
    copy = model.clone()
    markov.select_computation(copy, keep)
    return copy


def _bare_matmul(model: ov.Model) -> ov.Model:
    """The dense step's MatMul over the very same Constant."""
    table = next(node for node in model.get_ordered_ops() if node.get_friendly_name() == "markov_w2")
    x = ir.make_parameter("x", ov.Type.f32, [-1, RANK])
    product = opset.matmul(x, opset.convert(table, ov.Type.f32), False, True)
    return ov.Model([ir.make_result(product.output(0), "y")], [x], "matmul")


def _unstable_top_k() -> ov.Model:
    x = ir.make_parameter("x", ov.Type.f32, [-1, VOCABULARY])
    best = opset.topk(x, opset.constant(np.array(TOP_K, np.int64)), 1, "max", "value", index_element_type="i64")
    results = [ir.make_result(output, name) for output, name in zip(best.outputs(), ("values", "ids"), strict=True)]
    return ov.Model(results, [x], "top_k")


def _call(model: ov.Model, feeds: dict[Any, Array]) -> Call:
    """An inference without copies of its inputs."""
    request = ir.core().compile_model(model, "CPU", CONFIG).create_infer_request()
    held = {str(name): np.ascontiguousarray(value) for name, value in feeds.items()}
    for name, value in held.items():
        request.set_tensor(name, ov.Tensor(value, shared_memory=True))
    return lambda: (request.infer(), held)


def _all(calls: Sequence[Call]) -> Call:
    return lambda: [call() for call in calls]


def _in_turns(*calls: Call) -> list[list[float]]:
    """Milliseconds of each call in each turn."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(WARMUP + TURNS):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if turn >= WARMUP:
                taken.append((time.perf_counter() - start) * 1e3)
    return times


def _row(what: str, times: Sequence[Sequence[float]], budget: float) -> measure.Row:
    found, reference = (f"{statistics.median(taken):.1f} ms" for taken in times)
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    return measure.Row(f"markov head: {what}", found, reference, ratio, budget)


def main() -> int:
    """Print the table; 1 when a budget is exceeded."""
    with tempfile.TemporaryDirectory() as folder:
        lines = rows(Path(folder))
    for line in lines:
        limit = f"<= {line.budget:g}"
        print(f"{line.what:56} {line.found:>10} {line.reference:>10} {line.ratio:7.2f} {limit:>8} {line.verdict}")
    return 0 if all(line.verdict != "over" for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
