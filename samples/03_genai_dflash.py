"""OpenVINO GenAI drafts on a target that ovgraft annotated.

    python samples/03_genai_dflash.py [TARGET DRAFT]

Needs `pip install ovgraft[genai]`. GenAI exposes the states, moves the FC and attaches embedding and head itself when
it loads the pair; the annotation tells it where the layers are. The sample pair is random: its text is noise and its
draft guesses nothing. A trained pair answers with more than one token per target call.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import openvino_genai

import ovgraft

PAIR = Path(__file__).parent / "pair"
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


def pipeline(target: Path, draft: Path | None = None) -> openvino_genai.LLMPipeline:
    """A pipeline at exact precision; drafts demand that prefix caching is off."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    extra = {} if draft is None else {"draft_model": openvino_genai.draft_model(str(draft), "CPU", **EXACT)}
    return openvino_genai.LLMPipeline(str(target), "CPU", scheduler_config=scheduler, **extra, **EXACT)


def main(target: Path, draft: Path) -> None:
    """Annotate, then write with and without the draft."""
    with tempfile.TemporaryDirectory() as folder:
        annotated = Path(folder) / "target"
        graft = ovgraft.load(target)
        ovgraft.Pipeline("annotate-hidden-states{replace=true}").run(graft)
        graft.save(annotated)

        alone = pipeline(target).generate(["Once upon a time"], max_new_tokens=32, do_sample=False)
        drafted = pipeline(annotated, draft).generate(
            ["Once upon a time"], max_new_tokens=32, do_sample=False, num_assistant_tokens=7
        )
    print(drafted.texts[0])
    print("equal to the target alone:", drafted.texts[0] == alone.texts[0])
    print("draft tokens accepted:", drafted.extended_perf_metrics.get_num_accepted_tokens())


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:3]] or [PAIR / "target", PAIR / "draft"]
    main(*given)
