"""OpenVINO GenAI drafts with IRs built from checkpoints as it does with the exporter's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ovgraft import load
from ovgraft.passes.build_draft import BuildDraft
from ovgraft.pipeline import Pipeline
from tests.genai import runtime
from tests.genai.exported import checkpoint_of
from tests.genai.test_drafts import PROMPTS
from tests.genai.test_smollm2 import PROMPTS as MESSAGES
from tests.genai.test_smollm2 import annotated, converted, draft, sample

pytestmark = pytest.mark.genai
__all__ = ["annotated", "converted", "draft", "sample"]  # fixtures


def built(checkpoint: Path, target: Path, out: Path) -> Path:
    """The draft's package, from its checkpoint alone."""
    graft = load(target=target, draft=checkpoint)
    Pipeline([BuildDraft()]).run(graft)
    graft.save(out)
    return out / "draft"


@pytest.mark.parametrize("name", ["qwen3", "qwen3_agree"])
def test_a_built_draft_is_accepted_like_the_exported_one(
    name: str, zoo: Callable[[str], Path], shared: Path, tmp_path: Path
) -> None:
    exported = zoo(f"{name}_dflash_draft")
    source = shared / "zoo" / "checkpoints" / "qwen3_dflash_draft"
    if name == "qwen3_agree":
        source = checkpoint_of(exported, tmp_path / "checkpoint")
    ours = built(source, zoo(name), tmp_path / "built")
    alone = runtime.generate(runtime.pipeline(zoo(name)), PROMPTS)
    for count in (1, 4, 7):
        outcomes = [
            runtime.generate(runtime.pipeline(zoo(name), package), PROMPTS, assistant_tokens=count)
            for package in (exported, ours)
        ]
        assert outcomes[0] == outcomes[1]
        assert outcomes[1].tokens == alone.tokens
        assert outcomes[1].processed > 0
        assert outcomes[1].accepted == outcomes[1].processed or name == "qwen3"


def test_a_draft_genai_cannot_run_is_refused_and_not_run_wrongly(
    zoo: Callable[[str], Path], shared: Path, tmp_path: Path
) -> None:
    """Row offset 0 without dflash_mode: no pipeline, rather than one that accepts nothing."""
    ours = built(shared / "zoo" / "checkpoints" / "deepspec_headless", zoo("qwen3"), tmp_path / "built")
    with pytest.raises(RuntimeError):
        runtime.generate(runtime.pipeline(zoo("qwen3"), ours), PROMPTS[:1], assistant_tokens=4)


@pytest.mark.slow
def test_the_real_pair(annotated: Path, draft: Path, tmp_path: Path, record_property: Any) -> None:
    """SmolLM2 with the draft that was trained for it: as many tokens per step as with the exporter's IR."""
    ours = built(checkpoint_of(draft, tmp_path / "checkpoint"), annotated, tmp_path / "built")
    exported, found = (
        runtime.generate(runtime.pipeline(annotated, package), MESSAGES[:3], 40, assistant_tokens=4, ignore_eos=False)
        for package in (draft, ours)
    )
    record_property("tokens_per_step", found.tokens_per_step)
    assert found == exported
    assert found.tokens_per_step > 1.3
