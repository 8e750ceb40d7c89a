"""OpenVINO GenAI drafts on targets that ovgraft annotated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ovgraft
from tests.genai import runtime

pytestmark = pytest.mark.genai

PROMPTS = [[5, 17, 900, 3, 44], [1200, 77, 8], [64, 2, 500, 501, 502, 503, 7]]


def annotated(target: Path, draft: Path | None, out: Path) -> Path:
    """The target with its annotation written anew by ovgraft, saved beside its side files."""
    graft = ovgraft.load(target=target, draft=draft)
    ovgraft.Pipeline("annotate-hidden-states{replace=true}").run(graft)
    graft.save(out)
    return out / "target" if draft is not None else out


@pytest.mark.parametrize(("name", "accepts"), [("qwen3", False), ("qwen3_agree", True)])
def test_exported_dflash_draft_on_annotated_target(
    name: str, accepts: bool, zoo: Callable[[str], Path], tmp_path: Path
) -> None:
    draft = zoo(f"{name}_dflash_draft")
    target = annotated(zoo(name), draft, tmp_path / "grafted")
    alone = runtime.generate(runtime.pipeline(zoo(name)), PROMPTS)
    for count in (1, 4, 7):
        drafted = runtime.generate(runtime.pipeline(target, draft), PROMPTS, assistant_tokens=count)
        assert drafted.tokens == alone.tokens
        assert drafted.processed > 0
        if accepts:
            assert drafted.accepted == drafted.processed
