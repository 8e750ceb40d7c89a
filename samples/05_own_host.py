"""Speculative decoding with plain OpenVINO: what `--preset dflash`, `dspark` and `eagle3` are for.

    python samples/05_own_host.py GRAFTED_FOLDER [--tokens 5,17,900] [--new-tokens 40] [--candidates 4]

GRAFTED_FOLDER holds target/ and draft/ as `ovgraft apply --preset dflash` (or dspark, eagle3) writes them. The draft
proposes, the target checks all candidates in one call, and the states are cut back to what was accepted. The text is
the target's own; what a good draft changes is how many tokens one target call yields. One request, greedy, exact
precision.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.checks.head_walk import HeadWalk, best_walk
from ovgraft.drafts.reference import to_target_vocabulary

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


class Session:
    """A stateful decoder that remembers how many rows its states hold.

    Attributes:
        model: The IR as read.
        rows: Rows in the states.
    """

    def __init__(self, file: Path) -> None:
        core = ov.Core()
        self.model = core.read_model(file)
        self._request = core.compile_model(self.model, "CPU", EXACT).create_infer_request()
        self.rows = 0

    def reset(self) -> None:
        """Forget all rows: a new request begins."""
        self._request.reset_state()
        self.rows = 0

    def run(self, feeds: dict[str, NDArray[Any]], new_rows: int, kept: int | None = None) -> dict[str, NDArray[Any]]:
        """Run ``new_rows`` more rows, of which ``kept`` stay in the states (all of them when None).

        Returns:
            Output name -> array.
        """
        total = self.rows + new_rows
        positions = np.arange(self.rows, total, dtype=np.int64)[None]
        mask = np.ones((1, total), np.int64)
        self._request.infer(
            {**feeds, "position_ids": positions, "attention_mask": mask, "beam_idx": np.zeros(1, np.int32)}
        )
        self.rows += new_rows if kept is None else kept
        return {port.any_name: self._request.get_tensor(port).data.copy() for port in self.model.outputs}

    def cut(self, rows: int) -> None:
        """Forget everything after the first ``rows`` rows of every key and value state ``[1, heads, rows, size]``."""
        for state in self._request.query_state():
            state.state = ov.Tensor(np.ascontiguousarray(state.state.data[:, :, :rows]))
        self.rows = rows


@dataclass(frozen=True)
class Result:
    """New tokens, and how many target calls after the prompt they took."""

    tokens: list[int]
    calls: int

    @property
    def tokens_per_call(self) -> float:
        """1 without a draft."""
        return (len(self.tokens) - 1) / self.calls


class DFlash:
    """Proposes a whole block at once; its states hold context rows only, so nothing is ever cut.

    With a Markov head (DSpark) or a candidate selector (DFlash-2) beside the draft, each row's token depends on the one
    before it; without, tokens are the best of each row.
    """

    def __init__(self, file: Path) -> None:
        self.session = Session(file)
        info = self.session.model.get_rt_info
        self._mask = int(info(["dflash", "mask_token_id"]).astype(str))
        says_offset = self.session.model.has_rt_info(["dflash", "candidate_position_offset"])
        self._cut_rows = int(info(["dflash", "candidate_position_offset"]).astype(str)) if says_offset else 1
        says_size = self.session.model.has_rt_info(["dflash", "vocab_size"])
        self._vocab_size = int(info(["dflash", "vocab_size"]).astype(str)) if says_size else 0
        head = file.with_name("openvino_markov_head_model.xml")
        model = ov.Core().read_model(head) if head.exists() else None
        walk = best_walk(model)
        self._head = HeadWalk(model, walk) if model is not None and walk != "none" else None

    def propose(self, tokens: Sequence[int], states: NDArray[np.float32], count: int) -> list[int]:
        """Candidates after ``tokens``; states f32 ``[1, C, H]`` belong to the C rows before the last token."""
        rows = count + self._cut_rows
        block = np.array([[tokens[-1], *[self._mask] * (rows - 1)]], np.int64)
        feeds: dict[str, NDArray[Any]] = {"input_ids": block, "hidden_states": states}
        out = self.session.run(feeds, states.shape[1] + rows, kept=states.shape[1])
        logits = out["logits"][0]
        if "d2t" in out:  # a draft with a vocabulary of its own, told in the target's ids
            logits = to_target_vocabulary(logits, out["d2t"], self._vocab_size)
        if self._head is None:
            return [int(token) for token in logits.argmax(-1)]
        hidden = out["last_hidden_state"][0] if "last_hidden_state" in out else None
        return [int(token) for token in self._head.tokens(logits, hidden, tokens[-1])]


class Eagle3:
    """Proposes token by token; rows made from its own states are cut before the target's arrive."""

    def __init__(self, file: Path) -> None:
        self.session = Session(file)

    def propose(self, tokens: Sequence[int], states: NDArray[np.float32], count: int) -> list[int]:
        """Candidates after ``tokens``; states f32 ``[1, C, H]`` belong to the C rows before the last token."""
        length = states.shape[1]
        known = self.session.rows + length
        ids = np.array([tokens[-length:]], np.int64)
        candidates: list[int] = []
        for _ in range(count):
            out = self.session.run({"input_ids": ids, "hidden_states": states}, ids.shape[1])
            best = int(out["logits"][0, -1].argmax())
            candidates.append(best + int(out["d2t"][best]))
            ids, states = np.array([candidates[-1:]], np.int64), out["last_hidden_state"][:, -1:]
        self.session.cut(known)
        return candidates


class Host:
    """A grafted pair, compiled; continues one prompt at a time."""

    def __init__(self, folder: Path) -> None:
        self._target = Session(folder / "target" / "openvino_model.xml")
        file = folder / "draft" / "openvino_model.xml"
        eagle3 = ov.Core().read_model(file).has_rt_info(["eagle3_mode"])
        self._draft = Eagle3(file) if eagle3 else DFlash(file)

    def speculate(self, prompt: Sequence[int], new_tokens: int, candidates: int) -> Result:
        """Continue a prompt, with at most ``candidates`` draft tokens per target call."""
        target = self._target
        target.reset()
        self._draft.session.reset()
        tokens = list(prompt)
        out = target.run({"input_ids": np.array([tokens], np.int64)}, len(tokens))
        tokens.append(int(out["logits"][0, -1].argmax()))
        states, calls = out["last_hidden_state"], 0
        while len(tokens) < len(prompt) + new_tokens:
            room = len(prompt) + new_tokens - len(tokens) - 1
            proposed = self._draft.propose(tokens, states, min(candidates, room)) if room else []
            before = target.rows
            out = target.run({"input_ids": np.array([[tokens[-1], *proposed]], np.int64)}, 1 + len(proposed))
            calls += 1
            best = [int(token) for token in out["logits"][0].argmax(-1)]
            accepted = next((i for i, token in enumerate(proposed) if token != best[i]), len(proposed))
            tokens += best[: accepted + 1]
            states = out["last_hidden_state"][:, : accepted + 1]
            target.cut(before + accepted + 1)
        return Result(tokens[len(prompt) :], calls)


def main() -> None:
    """Read the command line and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", default="5,17,900", help="token ids of the prompt")
    parser.add_argument("--new-tokens", type=int, default=40)
    parser.add_argument("--candidates", type=int, default=4)
    options = parser.parse_args()
    prompt = [int(token) for token in options.tokens.split(",")]
    result = Host(options.folder).speculate(prompt, options.new_tokens, options.candidates)
    print("tokens:", *result.tokens)
    print(f"{result.tokens_per_call:.2f} tokens per target call")


if __name__ == "__main__":
    main()
