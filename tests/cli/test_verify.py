from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino import opset16 as ops

from tests import models
from tests.cli.conftest import Run


def test_one_graft_alone(run: Run, grafted: Path) -> None:
    outcome = run("verify", grafted, "--steps", 1)
    assert outcome.code == 0
    assert outcome.err == ""
    assert "weights  target  ok  blake3 " in outcome.out
    assert "all numbers are finite  (1 sample, prefill and 1 step, seed 0, CPU, f32)" in outcome.out
    data = run("verify", grafted, "--steps", 1, "--json").data
    assert data["schema"] == 1
    assert data["good"] is True
    assert [entry["model"] for entry in data["digests"]] == ["target", "draft"]


def test_the_grafted_pair_against_the_ungrafted_one(run: Run, target: Path, draft: Path, grafted: Path) -> None:
    outcome = run("verify", target, grafted, "--draft", draft, "--steps", 2, "--samples", 2)
    assert outcome.code == 0
    for output in ("target logits", "draft logits"):
        assert next(line for line in outcome.out.splitlines() if output in line).endswith(" ok")
    assert "same within limits  (2 samples, prefill and 2 steps" in outcome.out


def test_a_paged_pair_alone_and_against_the_stateful_one(run: Run, grafted: Path, tmp_path: Path) -> None:
    """The verdict is whole: drafts are compared too, under the limits of paged kernels."""
    passes = "per-row-draft,paged-attention,paged-attention{model=draft}"
    assert run("apply", grafted, "-p", passes, "-o", tmp_path / "paged").code == 0
    alone = run("verify", tmp_path / "paged", "--steps", 1)
    assert alone.code == 0, alone.err
    assert "all numbers are finite  (1 sample, prefill and 1 step, seed 0, CPU, f32)" in alone.out
    for sides in ((grafted, tmp_path / "paged"), (tmp_path / "paged", tmp_path / "paged")):
        outcome = run("verify", *sides, "--steps", 1)
        assert outcome.code == 0, outcome.err
        said = "target: 3 samples in one batch, whole, chunks of 7, one by one; draft: 3 samples, prefill and 1 step"
        assert f"same within limits  ({said}; seed 0, CPU, f32)" in outcome.out
        assert "0.0001 + 0.0001 max|row|" in outcome.out
        assert "as far as compared" not in outcome.out
    strict = run("verify", grafted, tmp_path / "paged", "--steps", 0, "--atol", "0", "--rtol", "0")
    assert strict.code == 1


def test_other_weights_are_1_with_numbers(run: Run, target: Path, tmp_path: Path) -> None:
    other = models.write_package(models.tiny_decoder(layers=4, seed=5), tmp_path / "other")
    outcome = run("verify", target, other, "--steps", 0)
    assert outcome.code == 1
    assert outcome.err == ""
    row = next(line for line in outcome.out.splitlines() if " logits " in line)
    assert row.split()[0] == "target"
    assert row.endswith("FAIL")
    assert "not the same" in outcome.out
    data = run("verify", target, other, "--steps", 0, "--json")
    assert data.code == 1
    assert data.data["same"] is False
    assert data.data["comparisons"][0]["outputs"][0]["where"]["call"] == "prefill"
    for limit in ("1e9", "logits:1e9"):
        assert run("verify", target, other, "--steps", 0, "--atol", limit).code == 0
    assert run("verify", target, other, "--steps", 0, "--atol", "1e9", "--atol", "logits:1e-5").code == 1


def test_models_that_read_different_things_are_1_with_reasons(run: Run, target: Path, draft: Path) -> None:
    outcome = run("verify", target, draft)
    assert outcome.code == 1
    assert "only one of them reads input_ids" in outcome.err


def test_weights_of_another_xml_are_found_by_the_digest(run: Run, grafted: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(grafted, copy)
    file = copy / "draft" / "openvino_model.bin"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    for args in ((), ("--json",)):
        outcome = run("verify", copy, *args)
        assert outcome.code == 3
        assert "the weights in openvino_model.bin do not belong to this xml" in outcome.err
    assert run("inspect", copy).code == 0  # sizes agree, and inspect reads no weights


def test_numbers_that_are_not_finite_are_1(run: Run, tmp_path: Path) -> None:
    model = models.tiny_decoder(layers=1)
    product = next(node for node in model.get_ordered_ops() if node.get_type_name() == "MatMul")
    broken = ops.multiply(product.input_value(0), ops.constant(np.float32(np.inf)))
    product.input(0).replace_source_output(broken.output(0))
    outcome = run("verify", models.write_package(model, tmp_path / "p"))
    assert outcome.code == 1
    assert "not finite in prefill" in outcome.out
    assert "not all numbers are finite" in outcome.out


def test_given_inputs(run: Run, target: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.npz"
    feeds = {"input_ids": [[1, 2, 3]], "attention_mask": [[1, 1, 1]], "position_ids": [[0, 1, 2]], "beam_idx": [0]}
    arrays: Any = {name: np.array(value, np.int32 if name == "beam_idx" else np.int64) for name, value in feeds.items()}
    np.savez(file, **arrays)
    for args in ([target], [target, target]):
        outcome = run("verify", *args, "--inputs", file)
        assert outcome.code == 0, outcome.err
        assert "one call" in outcome.out
    np.savez(file, input_ids=np.zeros((1, 2), np.int64))
    outcome = run("verify", target, "--inputs", file)
    assert outcome.code == 2
    assert "no value is given for input attention_mask, position_ids, beam_idx" in outcome.err
    np.savez(file, tokens=np.zeros((1, 2), np.int64))
    outcome = run("verify", target, "--inputs", file)
    assert outcome.code == 2
    assert "no model reads the given input tokens" in outcome.err


def test_a_checkpoint_has_nothing_to_run(run: Run) -> None:
    outcome = run("verify", Path(__file__).parents[2] / "samples" / "checkpoint")
    assert outcome.code == 3
    assert "checkpoint holds no OpenVINO model to run" in outcome.err


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["none"], 3, "no such file or folder"),
        (["{target}", "none"], 3, "no such file or folder"),
        (["{target}", "--inputs", "none.npz"], 3, "no such file: none.npz"),
        (["{target}", "--inputs", "{target}/config.json"], 3, "not an .npz archive"),
        (["{target}", "--device", "XPU"], 2, "no device 'XPU'"),
        (["{target}", "{target}", "--atol", "logits:x"], 2, "--atol expects a number"),
        (["{target}", "{target}", "--rtol", "-1"], 2, "--rtol expects a number"),
        (["{target}", "--steps", "-1"], 2, "--steps"),
        (["{grafted}", "--draft", "{draft}"], 2, "holds a draft already"),
    ],
)
def test_mistakes(run: Run, target: Path, draft: Path, grafted: Path, args: list[str], code: int, said: str) -> None:
    places = {"target": target, "draft": draft, "grafted": grafted}
    outcome = run("verify", *(arg.format(**places) for arg in args))
    assert outcome.code == code, outcome.err
    assert said in outcome.err
    assert outcome.out == ""


def test_a_model_that_does_not_compile_is_told_without_openvinos_text(
    run: Run, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Core:
        available_devices = ("CPU",)

        def compile_model(self, *args: object) -> None:
            raise RuntimeError("Exception from src/inference/src/cpp/core.cpp:1:\nnot today")

    monkeypatch.setattr("ovgraft.checks.run.ir.core", Core)
    outcome = run("verify", target)
    assert outcome.code == 1
    assert outcome.err == "error: target does not compile for CPU\n"
    assert "caused by: Exception from" in run("-v", "verify", target).err


def test_a_packed_head_is_held_against_its_checkpoint(run: Run, zoo: Callable[[str], Path], tmp_path: Path) -> None:
    pair = ["--target", zoo("qwen3"), "--draft", zoo("checkpoints") / "deepspec_gated"]
    assert run("apply", *pair, "-p", "pack-markov-head", "-o", tmp_path / "out").code == 0
    outcome = run("verify", tmp_path / "out", "--steps", 0)
    assert outcome.code == 0, outcome.err
    assert "the head computes its checkpoint's formulas" in outcome.out
    shutil.copy(zoo("checkpoints") / "deepspec_vanilla" / "model.safetensors", tmp_path / "out" / "draft")
    assert run("verify", tmp_path / "out", "--steps", 0).code != 0
    assert run("verify", zoo("qwen3"), tmp_path / "out", "--draft", tmp_path / "out" / "draft", "--steps", 0).code == 0


def test_real_exports(run: Run, zoo: Callable[[str], Path]) -> None:
    outcome = run("verify", zoo("qwen3"), zoo("qwen3-int8"), "--steps", 1)
    assert outcome.code == 1
    assert run("verify", zoo("qwen3"), zoo("qwen3-int8"), "--steps", 1, "--atol", "1").code == 0
    for name in ("mamba", "gemma4", "qwen3_12l_eagle3_draft", "qwen3_dflash_draft_sliding"):
        outcome = run("verify", zoo(name), "--steps", 1, "--json")
        assert outcome.code == 0, outcome.err
        assert json.loads(outcome.out)["good"]
