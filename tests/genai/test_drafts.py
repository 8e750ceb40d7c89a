"""OpenVINO GenAI drafts on targets that ovgraft annotated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ovgraft
from tests import agreeing, models
from tests.genai import apart, runtime

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
    pipe = runtime.pipeline(target, draft)
    for count in (1, 4, 7):
        drafted = runtime.generate(pipe, PROMPTS, assistant_tokens=count)
        assert drafted.tokens == alone.tokens
        assert drafted.processed > 0
        if accepts:
            assert drafted.accepted == drafted.processed


def test_exported_eagle3_draft_on_annotated_target(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    draft = zoo("qwen3_12l_eagle3_draft")
    target = runtime.with_tokenizer(annotated(zoo("qwen3_12l"), draft, tmp_path / "grafted"))
    alone = runtime.generate(runtime.pipeline(target), PROMPTS)
    drafted = apart.generate(target, draft, PROMPTS, assistant_tokens=4, agrees=False)
    assert drafted.tokens == alone.tokens
    assert drafted.processed > 0


def test_states_of_other_layers_are_accepted_less(tmp_path: Path) -> None:
    """The control: equal text, fewer accepted tokens, when the draft reads layers it was not made for."""
    target = agreeing.copying_target(6)
    folder = runtime.with_tokenizer(models.write_package(target.model, tmp_path / "target"))
    prompts = target.prompts()
    outcomes = []
    for fitted_to in ((1, 3, 4), (4, 3, 1)):
        draft = agreeing.dflash_draft(target, fitted_to)
        draft.set_rt_info("1,3,4", ["dflash", "target_layer_ids"])
        package = models.write_package(draft, tmp_path / f"draft{fitted_to[0]}")
        outcomes.append(runtime.generate(runtime.pipeline(folder, package), prompts, assistant_tokens=4))
    right, wrong = outcomes
    assert right.tokens == wrong.tokens
    assert right.accepted > 1.1 * wrong.accepted
