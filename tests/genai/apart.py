"""An Eagle-3 pipeline of OpenVINO GenAI in a process of its own, and in a fresh one when that dies.

On the CPU such a pipeline now and then dies at its first ``generate()``, or accepts nothing, whatever the draft: issue
4425 of openvino.genai. Another process with the same files is fine then, so a wrong draft still shows in all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import support
from tests.genai import runtime

ATTEMPTS = 3


def generate(
    target: Path,
    draft: Path,
    prompts: Sequence[Sequence[int]],
    new_tokens: int = 40,
    *,
    assistant_tokens: int,
    agrees: bool = True,
) -> runtime.Outcome:
    """As :func:`tests.genai.runtime.generate`.

    Args:
        target: Package of the target.
        draft: Package of the draft.
        prompts: Token ids.
        new_tokens: How many to write behind each prompt.
        assistant_tokens: Draft tokens per step.
        agrees: Whether the draft was made to be accepted, so that nothing accepted is reason to try again.

    Raises:
        RuntimeError: What the pipeline raised, or every process died.
    """
    given = {
        "target": str(target),
        "draft": str(draft),
        "prompts": prompts,
        "new_tokens": new_tokens,
        "assistant_tokens": assistant_tokens,
    }
    outcome = None
    for _ in range(ATTEMPTS):
        command = [sys.executable, "-m", "tests.genai.apart"]
        ran = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, cwd=support.ROOT)
        if ran.returncode < 0:
            continue
        assert ran.returncode == 0, ran.stderr
        said = json.loads(ran.stdout.splitlines()[-1])  # GenAI prints notes of its own
        if "error" in said:
            raise RuntimeError(said["error"])
        outcome = runtime.Outcome(tuple(map(tuple, said["tokens"])), said["accepted"], said["processed"])
        if outcome.accepted or not agrees:
            break
    if outcome is None:
        raise RuntimeError(f"the pipeline died {ATTEMPTS} times: {ran.stderr}")
    return outcome


def _main() -> None:
    given = json.load(sys.stdin)
    try:
        pipe = runtime.pipeline(Path(given["target"]), Path(given["draft"]))
        outcome = runtime.generate(
            pipe, given["prompts"], given["new_tokens"], assistant_tokens=given["assistant_tokens"]
        )
        said = {"tokens": outcome.tokens, "accepted": outcome.accepted, "processed": outcome.processed}
    except RuntimeError as error:
        said = {"error": str(error)}
    print(json.dumps(said))


if __name__ == "__main__":
    _main()
