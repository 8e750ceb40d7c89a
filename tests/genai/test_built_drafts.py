"""OpenVINO GenAI drafts with IRs built from checkpoints as it does with the exporter's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.genai import runtime
from tests.genai.exported import built, checkpoint_of
from tests.genai.test_drafts import PROMPTS

pytestmark = pytest.mark.genai


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
    pipes = [runtime.pipeline(zoo(name), package) for package in (exported, ours)]
    for count in (1, 4, 7):
        outcomes = [runtime.generate(pipe, PROMPTS, assistant_tokens=count) for pipe in pipes]
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
