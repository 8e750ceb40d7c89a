"""The tokens a host would propose with a Markov head, greedily: by the dense walk or along the Top-K lattice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.checks.run import PARITY
from ovgraft.drafts import markov
from ovgraft.drafts.markov import Computation
from ovgraft.drafts.reference import to_target_vocabulary
from ovgraft.errors import MismatchError

Array = NDArray[Any]
Walk = Literal["none", "dense", "lattice"]

_COMPUTATIONS = {"dense": Computation.DENSE, "lattice": Computation.SCORER}


class HeadWalk:
    """One head, compiled.

    Args:
        head: ``openvino_markov_head_model``.
        walk: ``dense``: the best biased token of each row; ``lattice``: the best edges between the rows' candidates.
        d2t: i64 ``[Dv]`` of a pruned draft.
        device: OpenVINO device.
        config: Compile properties.

    Raises:
        MismatchError: The head does not have that computation.
    """

    def __init__(
        self,
        head: ov.Model,
        walk: Literal["dense", "lattice"],
        d2t: Array | None = None,
        *,
        device: str = "CPU",
        config: Mapping[str, Any] = PARITY,
    ) -> None:
        self._runner = markov.HeadRunner(head, device=device, config=config)
        self._walk, self._d2t = walk, d2t
        if _COMPUTATIONS[walk] not in self._runner.computations:
            raise MismatchError(
                f"a {self._runner.facts.type} head has no {walk} walk", found=", ".join(self._runner.computations)
            )

    def tokens(self, logits: Array, hidden: Array | None, anchor_token_id: int) -> Array:
        """Propose a block.

        Args:
            logits: f32 ``[L, V]``, or ``[L, Dv]`` of a pruned draft: the candidate rows of one block.
            hidden: f32 ``[L, H]``, the draft's states of the same rows; not read for a vanilla head.
            anchor_token_id: Token before the first candidate.

        Returns:
            i64 ``[L]``, target ids.
        """
        rows = logits if self._d2t is None else to_target_vocabulary(logits, self._d2t, self._runner.facts.vocab_size)
        states = hidden if self._runner.facts.type.reads_hidden else None
        if self._walk == "dense":
            return self._dense(rows, states, anchor_token_id)
        return self._lattice(rows, states, anchor_token_id)

    def _dense(self, rows: Array, hidden: Array | None, anchor: int) -> Array:
        tokens, previous, state = [], anchor, None
        for at, row in enumerate(rows):
            bias, state = self._runner.dense([previous], None if hidden is None else hidden[at : at + 1], state)
            previous = int((row + bias[0]).argmax())
            tokens.append(previous)
        return np.array(tokens, np.int64)

    def _lattice(self, rows: Array, hidden: Array | None, anchor: int) -> Array:
        ids, edges = self._runner.score(rows, [anchor], [0, len(rows)], hidden)
        tokens, at = [], 0  # in the first row all predecessors are the anchor
        for candidates, scores in zip(ids, edges, strict=True):
            at = int(scores[at].argmax())
            tokens.append(int(candidates[at]))
        return np.array(tokens, np.int64)


def best_walk(head: ov.Model | None) -> Walk:
    """What a host does unless told otherwise: the lattice where there is a scorer, else the dense walk."""
    if head is None:
        return "none"
    present = markov.present_computations(head)
    return "lattice" if Computation.SCORER in present else "dense"
