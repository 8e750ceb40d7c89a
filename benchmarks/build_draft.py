"""Drafts from checkpoints: build and save against cp, steps against the exporter's IR, packed against single requests.

The checkpoint is generated: a 2 GB Qwen3-shaped DFlash draft in bf16, five layers 4096 wide.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure, per_row_step
from ovgraft import ir, load
from ovgraft.drafts.building.draft import build_draft
from ovgraft.drafts.checkpoint import read_checkpoint
from ovgraft.ir.copying import copy_file
from ovgraft.ir.files import file_digest, sync
from ovgraft.passes.build_draft import BuildDraft
from ovgraft.pipeline import Pipeline
from tests import support
from tests.drafts import checkpoints
from tests.genai.exported import checkpoint_of

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 4096, 12288, 5, 32, 8, 128
TARGET_LAYERS, LAYER_IDS = 36, (1, 9, 17, 25, 33)
TURNS, SAVES, MOST_MIB = 5, 8, 400
PAST, CONTEXT, BLOCK, INFERENCES = 512, 4, 7, 25

Array = NDArray[Any]


def rows(folder: Path) -> list[measure.Row]:
    """All lines of the table.

    Args:
        folder: Takes 6 GB, on a disk that counts.
    """
    lines = _saving(folder)
    exported = support.SHARED / "models" / "smollm2-135m-dflash-ir"
    if exported.is_dir():
        lines.append(_against_exporter(exported, folder))
    return [*lines, *per_row_step.rows(folder)]


def _saving(folder: Path) -> list[measure.Row]:
    source = checkpoint(folder / "draft-checkpoint")
    run = measure.run("benchmarks.build_draft:build_and_copy", source, folder)
    built, copied = run.value
    size = (source / "model.safetensors").stat().st_size / 1e9
    return [
        measure.Row(
            f"build and save a checkpoint of {size:.1f} GB / cp, fsync, blake3",
            f"{built:.2f} s",
            f"{copied:.2f} s",
            built / copied,
            1.2,
        ),
        measure.Row(
            "the same, private memory", f"{run.peak_mib:.0f} MiB", f"{MOST_MIB} MiB", run.peak_mib / MOST_MIB, 1.0
        ),
    ]


def build_and_copy(source: str, folder: str) -> tuple[float, float]:
    """Seconds to build and save, and to copy, force to disk and digest the checkpoint's file; turn by turn."""
    out = Path(folder) / "built-draft"

    def build() -> None:
        graft = load(source)
        Pipeline([BuildDraft()]).run(graft)
        graft.save(out / "draft")

    def copy() -> None:
        copy_file(Path(source) / "model.safetensors", out / "copy")
        sync(out / "copy")
        file_digest(out / "copy")

    best = [float("inf")] * 2
    for _ in range(SAVES):
        for side, work in enumerate((build, copy)):
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            os.sync()  # nobody pays for what the one before left unwritten
            started = time.perf_counter()
            work()
            best[side] = min(best[side], time.perf_counter() - started)
    shutil.rmtree(out)
    return best[0], best[1]


def checkpoint(folder: Path) -> Path:
    """A z-lab checkpoint of random finite bf16 numbers; written once, tensor by tensor."""
    if folder.exists():
        return folder
    config, _ = checkpoints.zlab_dflash()
    config |= {
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": 151_936,
        "layer_types": ["full_attention"] * LAYERS,
        "num_target_layers": TARGET_LAYERS,
        "dflash_config": {"mask_token_id": 151_669, "target_layer_ids": list(LAYER_IDS)},
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    _write_noise(folder / "model.safetensors")
    return folder


def _write_noise(file: Path) -> None:
    """All tensors, a slice of finite noise each: equal constants would be written once."""
    random = np.random.default_rng(0)
    noise = (random.standard_normal(128 << 20, np.float32) / 64).astype(checkpoints.BF16)
    header, end, shapes = {}, 0, dict(_shapes())
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            count = math.prod(shape)
            start = int(random.integers(0, len(noise) - count))
            stream.write(noise[start : start + count].view(np.uint8).data)


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    yield "fc.weight", (HIDDEN, len(LAYER_IDS) * HIDDEN)
    yield "hidden_norm.weight", (HIDDEN,)
    yield "norm.weight", (HIDDEN,)
    for layer in range(LAYERS):
        prefix = f"layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (HIDDEN,)
        yield f"{prefix}.post_attention_layernorm.weight", (HIDDEN,)
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{prefix}.self_attn.{name}_proj.weight", (rows, HIDDEN)
        yield f"{prefix}.self_attn.o_proj.weight", (HIDDEN, queries)
        for name in ("q", "k"):
            yield f"{prefix}.self_attn.{name}_norm.weight", (HEAD_DIM,)
        for name in ("gate", "up"):
            yield f"{prefix}.mlp.{name}_proj.weight", (INTERMEDIATE, HIDDEN)
        yield f"{prefix}.mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)


def _against_exporter(exported: Path, folder: Path) -> measure.Row:
    """Steps of a real draft of 27 M weights: 7 rows behind 4 new context rows and 512 old ones, default precision."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        source = read_checkpoint(checkpoint_of(exported, Path(name) / "checkpoint"))
        models = build_draft(source), ir.read_model(exported / "openvino_model.xml")
        requests = [ir.core().compile_model(model, "CPU").create_infer_request() for model in models]
        spec, random = source.spec, np.random.default_rng(0)
        width, states = spec.backbone.hidden_size, len(spec.layer_ids) * spec.backbone.target_hidden_size

        def feeds(past: int, context: int) -> dict[str, Array]:
            hidden = random.standard_normal((1, context, states), np.float32)
            return support.draft_feeds(hidden, random.standard_normal((1, BLOCK, width), np.float32), past)

        best = [float("inf")] * 2
        for _ in range(TURNS):
            first = feeds(0, PAST)
            for request in requests:
                request.reset_state()
                request.infer(first)
            for step in range(INFERENCES):
                given = feeds(PAST + step * CONTEXT, CONTEXT)
                for side, request in enumerate(requests):
                    started = time.perf_counter()
                    request.infer(given)
                    best[side] = min(best[side], time.perf_counter() - started)
    return measure.Row(
        f"a step of the built v1 draft, {BLOCK} rows behind {CONTEXT} and {PAST} / of the exporter's IR",
        f"{best[0] * 1e3:.1f} ms",
        f"{best[1] * 1e3:.1f} ms",
        best[0] / best[1],
        1.05,
    )
