"""A small host of head models: it validates what OpenVINO does not, then infers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import ArrayLike, NDArray

from ovgraft import ir
from ovgraft.drafts.contract import Port
from ovgraft.drafts.markov import inputs
from ovgraft.drafts.markov.check import require_head
from ovgraft.drafts.markov.computations import Computation, ports
from ovgraft.drafts.markov.facts import present_computations
from ovgraft.drafts.markov.select import select_computation
from ovgraft.errors import PreconditionError, Reason

Array = NDArray[Any]


class HeadRunner:
    """Runs the computations of one head model, each compiled at first use.

    Args:
        model: A head model, packed or with one computation; it is left as it is.
        device: OpenVINO device.
        config: Compile properties; f32 inference precision unless they say otherwise.

    Raises:
        PreconditionError: The model breaks the contract; ``reasons`` says how.
    """

    def __init__(self, model: ov.Model, *, device: str = "CPU", config: Mapping[str, Any] | None = None) -> None:
        self.facts = require_head(model)
        self.computations = present_computations(model)
        self._model = model
        self._device = device
        self._config = {"INFERENCE_PRECISION_HINT": "f32", **(config or {})}
        self._requests: dict[Computation, ov.InferRequest] = {}

    def dense(
        self,
        prev_token_ids: ArrayLike,
        draft_hidden_states: ArrayLike | None = None,
        rnn_state: ArrayLike | None = None,
    ) -> tuple[Array, Array | None]:
        """One dense step of all blocks that are still drafting.

        Args:
            prev_token_ids: ``[M]``, target ids.
            draft_hidden_states: ``[M, H]`` of the rows to correct; gated and rnn heads.
            rnn_state: ``[M, r]``; None is zeros, the state at a block's start; rnn heads.

        Returns:
            ``markov_bias`` f32 ``[M, V]``, to be added to the rows, and ``next_rnn_state`` of an rnn head.

        Raises:
            HeadInputError: Inputs that would give wrong numbers.
            PreconditionError: The head has no dense step.
        """
        previous = _ids(prev_token_ids)
        feeds = {Port.PREV_TOKEN_IDS: previous, Port.DRAFT_HIDDEN_STATES: draft_hidden_states}
        if Port.RNN_STATE in self._ports(Computation.DENSE):
            zeros = np.zeros((len(previous), self.facts.rank), np.float32)
            feeds[Port.RNN_STATE] = zeros if rnn_state is None else rnn_state
        elif rnn_state is not None:
            feeds[Port.RNN_STATE] = rnn_state
        found = self._infer(Computation.DENSE, feeds, rows=len(previous))
        return found[Port.MARKOV_BIAS], found.get(Port.NEXT_RNN_STATE)

    def score(
        self,
        draft_logits: ArrayLike,
        anchor_token_ids: ArrayLike,
        block_begins: ArrayLike,
        draft_hidden_states: ArrayLike | None = None,
    ) -> tuple[Array, Array]:
        """The candidates of all rows of all requests and their edges.

        Args:
            draft_logits: ``[R, V]`` candidate rows after multiplier and soft cap, blocks back to back; -inf outside a
                pruned vocabulary.
            anchor_token_ids: ``[B]``, the token before each block's first candidate.
            block_begins: ``[B + 1]``, first row of each block, then R; see :func:`inputs.block_begins`.
            draft_hidden_states: ``[R, H]``; gated and dflash2 heads.

        Returns:
            ``candidate_ids`` i64 ``[R, K]`` and ``edge_scores`` f32 ``[R, K, K]``.

        Raises:
            HeadInputError: Inputs that would give wrong numbers.
            PreconditionError: The head has no scorer.
        """
        rows = np.asarray(draft_logits, np.float32)
        feeds = {
            Port.DRAFT_LOGITS: rows,
            Port.ANCHOR_TOKEN_IDS: _ids(anchor_token_ids),
            Port.BLOCK_BEGINS: _ids(block_begins),
            Port.DRAFT_HIDDEN_STATES: draft_hidden_states,
        }
        found = self._infer(Computation.SCORER, feeds, rows=len(rows) if rows.ndim else 0)
        return found[Port.CANDIDATE_IDS], found[Port.EDGE_SCORES]

    def confidence(self, draft_hidden_states: ArrayLike, prev_token_ids: ArrayLike | None = None) -> Array:
        """The probability that the token drafted in each row is accepted, f32 ``[M]``.

        Args:
            draft_hidden_states: ``[M, H]``.
            prev_token_ids: ``[M]``, the token before each row; confidence heads that read the Markov embedding.

        Raises:
            HeadInputError: Inputs that would give wrong numbers.
            PreconditionError: The head has no confidence.
        """
        hidden = np.asarray(draft_hidden_states, np.float32)
        feeds: dict[Port, Any] = {Port.DRAFT_HIDDEN_STATES: hidden}
        if prev_token_ids is not None:
            feeds[Port.PREV_TOKEN_IDS] = _ids(prev_token_ids)
        return self._infer(Computation.CONFIDENCE, feeds, rows=len(hidden) if hidden.ndim else 0)[Port.CONFIDENCE]

    def _infer(self, computation: Computation, feeds: Mapping[Port, Any], rows: int) -> dict[Port, Array]:
        wanted = self._ports(computation)
        given = {port: value for port, value in feeds.items() if value is not None}
        arrays = {
            port: np.ascontiguousarray(value if port in _ID_PORTS else np.asarray(value, np.float32))
            for port, value in given.items()
        }
        inputs.check(self._reasons(wanted, arrays, rows))
        request = self._request(computation)
        request.infer({str(port): array for port, array in arrays.items()})
        outputs = ports(self.facts.type, computation).outputs
        return {port: np.array(request.get_tensor(str(port)).data) for port in outputs}

    def _ports(self, computation: Computation) -> list[Port]:
        if computation not in self.computations:
            raise PreconditionError(
                f"this {self.facts.type} head has no {computation} computation", found=", ".join(self.computations)
            )
        return [Port(port.any_name) for port in self._request(computation).get_compiled_model().inputs]

    def _reasons(self, wanted: list[Port], arrays: Mapping[Port, Array], rows: int) -> Iterator[Reason]:
        for port in [port for port in wanted if port not in arrays]:
            yield Reason("missing-input", f"{port} is missing")
        for port in [port for port in arrays if port not in wanted]:
            yield Reason("unknown-input", f"{port} is no input of this computation")
        if set(wanted) != set(arrays):
            return
        vocab_size = self.facts.vocab_size
        for port, array in arrays.items():
            match port:
                case Port.ANCHOR_TOKEN_IDS | Port.PREV_TOKEN_IDS:
                    yield from inputs.token_reasons(port, array, vocab_size)
                case Port.DRAFT_LOGITS:
                    yield from inputs.logit_reasons(array, vocab_size)
                case Port.BLOCK_BEGINS:
                    yield from inputs.block_reasons(array, arrays[Port.ANCHOR_TOKEN_IDS], rows)
                case Port.DRAFT_HIDDEN_STATES:
                    yield from inputs.state_reasons(port, array, rows, self.facts.hidden_size or 0)
                case Port.RNN_STATE:
                    yield from inputs.state_reasons(port, array, rows, self.facts.rank)

    def _request(self, computation: Computation) -> ov.InferRequest:
        if computation not in self._requests:
            model = self._model.clone()
            select_computation(model, computation)
            compiled = ir.core().compile_model(model, self._device, self._config)
            self._requests[computation] = compiled.create_infer_request()
        return self._requests[computation]


_ID_PORTS = frozenset({Port.ANCHOR_TOKEN_IDS, Port.BLOCK_BEGINS, Port.PREV_TOKEN_IDS})


def _ids(values: ArrayLike) -> Array:
    """i64, refusing what is no whole number instead of rounding it."""
    array = np.asarray(values)
    return array.astype(np.int64) if np.issubdtype(array.dtype, np.integer) or array.size == 0 else array
