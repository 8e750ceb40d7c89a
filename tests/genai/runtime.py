"""OpenVINO GenAI at exact precision: a target alone, or with a draft, on given token ids."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from tests import support

genai = pytest.importorskip("openvino_genai", reason="openvino_genai is not installed: pip install 'ovgraft[genai]'")

TOKENIZER = support.ROOT / "samples" / "pair" / "target"


@dataclass(frozen=True)
class Outcome:
    """What a pipeline wrote.

    Attributes:
        tokens: New tokens per prompt.
        accepted: Draft tokens the target accepted, over all prompts.
        processed: Rows the draft ran, over all prompts.
    """

    tokens: tuple[tuple[int, ...], ...]
    accepted: int = 0
    processed: int = 0

    @property
    def tokens_per_step(self) -> float:
        """Tokens per target call: each call writes one token of its own and what it accepted."""
        written = sum(map(len, self.tokens))
        return written / (written - self.accepted)


def with_tokenizer(folder: Path, source: Path = TOKENIZER) -> Path:
    """GenAI opens no folder without tokenizer; any will do when ids go in and out."""
    for path in source.glob("openvino_*tokenizer.*"):
        shutil.copyfile(path, folder / path.name)
    return folder


def pipeline(target: Path, draft: Path | None = None) -> Any:
    """A greedy continuous-batching pipeline on the CPU at f32, prefix caching off as drafts demand."""
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.cache_size = 1
    properties = {**support.PARITY, **support.THREADS}
    extra = {} if draft is None else {"draft_model": genai.draft_model(str(draft), "CPU", **properties)}
    return genai.LLMPipeline(str(target), "CPU", scheduler_config=scheduler, **extra, **properties)


def generate(
    pipe: Any,
    prompts: Sequence[Sequence[int]] | Sequence[str],
    new_tokens: int = 40,
    *,
    assistant_tokens: int | None = None,
    ignore_eos: bool = True,
) -> Outcome:
    """Greedy continuation of every prompt, one by one.

    Args:
        pipe: From :func:`pipeline`.
        prompts: Token ids, or texts that go through the chat template.
        new_tokens: How many tokens to write.
        assistant_tokens: Draft tokens per step; None without a draft.
        ignore_eos: Write on after the end of the text.
    """
    config = genai.GenerationConfig()
    config.max_new_tokens = new_tokens
    config.ignore_eos = ignore_eos
    config.do_sample = False
    if assistant_tokens is not None:
        config.num_assistant_tokens = assistant_tokens
    tokenizer = pipe.get_tokenizer()
    written, accepted, processed = [], 0, 0
    for prompt in prompts:
        if isinstance(prompt, str):
            text = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
            ids = tokenizer.encode(text, add_special_tokens=False).input_ids
        else:
            ids = ov.Tensor(np.asarray([prompt], np.int64))
        result = pipe.generate(ids, config)
        written.append(tuple(result.tokens[0]))
        metrics = result.extended_perf_metrics
        if metrics is not None:
            accepted += metrics.get_num_accepted_tokens()
            processed += metrics.get_num_draft_processed_tokens()
    return Outcome(tuple(written), accepted, processed)
