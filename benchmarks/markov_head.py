"""Markov heads at full size: V 151,936, rank 256, bf16 tables, CPU. `python -m benchmarks.markov_head` prints ratios.

The sides of a ratio take turns in one process, and each side counts with its median.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft import ir
from ovgraft.drafts import markov
from ovgraft.drafts.contract import Port
from ovgraft.drafts.spec import HeadType
from ovgraft.ir import opset

VOCABULARY, RANK, TOP_K = 151_936, 256, 64
REQUESTS, ROWS = 8, 7
CONFIG = {"INFERENCE_PRECISION_HINT": "f32"}
WARMUP, ROUNDS = 3, 15

Array = NDArray[Any]
Call = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """One line of the table.

    Attributes:
        what: What is measured against what.
        measured: Milliseconds, MB or a factor.
        base: The other side, in the same unit.
        bound: Where the ratio has to be.
        faster: The ratio is base / measured and has to be at least the bound; else measured / base, at most.
    """

    what: str
    measured: float
    base: float
    bound: float
    faster: bool = False

    @property
    def value(self) -> float:
        """The ratio."""
        return self.base / self.measured if self.faster else self.measured / self.base

    @property
    def met(self) -> bool:
        """Is it within the bound?"""
        return self.value >= self.bound if self.faster else self.value <= self.bound


def main() -> int:
    """Print the table; 1 when a bound is broken."""
    with tempfile.TemporaryDirectory() as folder:
        lines = [*head_ratios(), *save_ratios(Path(folder))]
    print(table(lines))
    return 0 if all(line.met for line in lines) else 1


def table(lines: Sequence[Ratio]) -> str:
    """The ratios as text."""
    width = max(len(line.what) for line in lines)
    rows = [f"{'':{width}}  measured      base     ratio  bound"]
    for line in lines:
        sign = ">=" if line.faster else "<="
        verdict = "" if line.met else "  BROKEN"
        rows.append(
            f"{line.what:{width}}  {line.measured:8.1f}  {line.base:8.1f}  {line.value:8.2f}  {sign} {line.bound:g}{verdict}"
        )
    return "\n".join(rows)


def head_ratios() -> list[Ratio]:
    """Dense step and scorer."""
    random = np.random.default_rng(0)
    weights = random_head(random)
    model = markov.build_head(weights, top_k=TOP_K)
    dense, scorer = (_selected(model, keep) for keep in (markov.Computation.DENSE, markov.Computation.SCORER))
    rows = REQUESTS * ROWS
    logits = (random.standard_normal((rows, VOCABULARY), np.float32) * 3).astype(np.float32)
    anchors = random.integers(0, VOCABULARY, REQUESTS)
    begins = np.arange(0, rows + 1, ROWS)

    def score(first: int, count: int) -> Call:
        return _call(
            scorer,
            {
                Port.DRAFT_LOGITS: logits[first * ROWS : (first + count) * ROWS],
                Port.ANCHOR_TOKEN_IDS: anchors[first : first + count],
                Port.BLOCK_BEGINS: begins[: count + 1],
            },
        )

    step = _call(dense, {Port.PREV_TOKEN_IDS: anchors})
    steps = [_call(dense, {Port.PREV_TOKEN_IDS: anchors[i : i + 1]}) for i in range(REQUESTS)]
    bare = _call(_bare_matmul(model), {"x": random.standard_normal((1, RANK), np.float32)})
    packed, blocks = score(0, REQUESTS), [score(i, 1) for i in range(REQUESTS)]
    top_k = _call(_unstable_top_k(), {"x": logits})

    dense_8, dense_8x1 = _medians(step, _all(steps))
    seven, seven_bare = _medians(_all([steps[0]] * ROWS), _all([bare] * ROWS))
    scored, scored_apart, sorted_only = _medians(packed, _all(blocks), top_k)
    return [
        Ratio("dense, 8 requests: 8 steps alone / 1 packed [ms]", dense_8, dense_8x1, 4.0, faster=True),
        Ratio("dense, 1 request: 7 steps / 7 bare MatMuls [ms]", seven, seven_bare, 1.2),
        Ratio("scorer, 8 x 7 rows: 1 packed / 8 alone [ms]", scored, scored_apart, 1.0),
        Ratio("scorer, 8 x 7 rows, K 64 / unstable TopK [ms]", scored, sorted_only, 3.0),
    ]


def save_ratios(folder: Path) -> list[Ratio]:
    """Build and save from a checkpoint file, in a process of its own."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    return []


def random_head(random: np.random.Generator) -> markov.HeadWeights:
    """A vanilla head of the full size."""
    tables = [
        (random.standard_normal((VOCABULARY, RANK), np.float32) / 16).astype(ml_dtypes.bfloat16) for _ in range(2)
    ]
    return markov.HeadWeights(HeadType.VANILLA, VOCABULARY, *tables)


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


def _medians(*calls: Call) -> list[float]:
    """Milliseconds of each call; they take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(WARMUP + ROUNDS):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if turn >= WARMUP:
                taken.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(taken) for taken in times]


if __name__ == "__main__":
    sys.exit(main())
