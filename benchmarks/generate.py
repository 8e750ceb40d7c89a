"""Models to measure on: 4 GiB of weights in 36 layers of exporter shape, and small-weight graphs of any depth.

The weights are codes from one file of random bytes, mapped: writing 4 GiB this way takes no private memory.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from numpy.typing import NDArray

from tests import blocks, models

LAYERS, HIDDEN, VOCABULARY, HEADS, KV_HEADS = 36, 3584, 64_512, 28, 4
CAPTURED = (1, 9, 17, 25, 33)
CHUNK = 64 << 20


class MappedWeights(blocks.Weights):
    """int8 matrices whose codes are views of one mapped file of random bytes."""

    def __init__(self, file: Path, size: int, seed: int = 0) -> None:
        super().__init__(seed, "int8")
        with file.open("wb") as out:
            for start in range(0, size, CHUNK):
                out.write(self.random.bytes(min(CHUNK, size - start)))
        self._bytes = np.memmap(file, np.uint8, "c")  # openvino shares writable arrays only
        self._taken = 0

    def normal(self, *shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        """Vectors are drawn; of matrices only the shape is wanted."""
        return np.broadcast_to(np.float32(scale), shape) if len(shape) == 2 else super().normal(*shape, scale=scale)

    def _int8(self, name: str, values: NDArray[np.float32]) -> ov.Node:
        rows, columns = values.shape
        codes = self._bytes[self._taken : self._taken + rows * columns].reshape(rows, columns)
        assert codes.shape == (rows, columns)
        self._taken += rows * columns
        stored = blocks.named(ops.constant(codes, shared_memory=True), name)
        zero = np.full((rows, 1), 128, np.uint8)
        scale = np.full((rows, 1), float(values.flat[0]) / 74, np.float16)
        return self.decompressed(name, stored, zero, scale)


def big_pair(folder: Path) -> tuple[Path, Path]:
    """A 4 GiB target without annotation and a DFlash draft of its width; written once, then found again.

    Returns:
        Folders of target and draft.
    """
    target, draft = folder / "target", folder / "draft"
    if not (draft / "openvino_model.xml").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        head_rows = HIDDEN // HEADS * KV_HEADS
        per_layer = HIDDEN * (2 * HIDDEN + 2 * head_rows + 6 * HIDDEN)
        weights = MappedWeights(folder / "random", LAYERS * per_layer + 2 * VOCABULARY * HIDDEN)
        model = models.decoder(weights, LAYERS, HIDDEN, VOCABULARY, HEADS, KV_HEADS)
        models.write_package(model, target, config={"model_type": "qwen3", "num_hidden_layers": LAYERS})
        del model, weights
        os.unlink(folder / "random")
        models.write_package(dflash_draft(), draft, config={"model_type": "qwen3", "block_size": 16})
    return target, draft


def dflash_draft() -> ov.Model:
    """A one-layer draft whose FC, 3584 x 17920 in f16, is what move-fc carries over."""
    return models.tiny_dflash_draft(
        1,
        HIDDEN,
        len(CAPTURED),
        hidden=HIDDEN,
        heads=HEADS,
        kv_heads=KV_HEADS,
        weights="f16",
        target_layer_ids=CAPTURED,
    )


def deep(layers: int, weights: blocks.WeightFormat = "f32") -> ov.Model:
    """A decoder of tiny weights: about 157 ops a layer, 206 in int8."""
    return models.tiny_decoder(layers, weights=weights)


def ten_thousand_ops() -> ov.Model:
    """The smallest tiny decoder of at least 10,000 ops."""
    return _smallest(10_000, "f32")


def fifteen_thousand_ops() -> ov.Model:
    """The smallest tiny int8 decoder of at least 15,000 ops; it has 73 layers."""
    return _smallest(15_000, "int8")


def _smallest(count: int, weights: blocks.WeightFormat) -> ov.Model:
    two, four = (len(deep(layers, weights).get_ops()) for layers in (2, 4))
    per_layer = (four - two) // 2
    return deep(-((two - 2 * per_layer - count) // per_layer), weights)
