"""Head models: the computations of a Markov head over one copy of its tables."""

from __future__ import annotations

import numpy as np
import openvino as ov

from ovgraft import ir
from ovgraft.drafts.contract import MARKOV_PORTS, Port
from ovgraft.drafts.markov.computations import (
    INPUT_ORDER,
    TOP_K_CONSTANT,
    Computation,
    computations_of,
    ports,
)
from ovgraft.drafts.markov.constants import Precision, weight
from ovgraft.drafts.markov.facts import HeadFacts, write_facts
from ovgraft.drafts.markov.head_weights import HeadWeights
from ovgraft.drafts.markov.topk import exact_top_k
from ovgraft.drafts.spec import Confidence, HeadType
from ovgraft.errors import PreconditionError
from ovgraft.ir import opset

DEFAULT_TOP_K = 64
_MODEL_NAME = "markov_head"


def build_head(
    weights: HeadWeights,
    *,
    top_k: int | None = None,
    precision: Precision = "checkpoint",
    confidence: bool = False,
) -> ov.Model:
    """Build the head model.

    Every computation of the head is in it: the dense step (all heads but dflash2), the scorer (all but rnn) and, when
    asked for, the confidence. Ports are those of ``ovgraft.drafts.contract.MARKOV_PORTS``; arithmetic is f32 whatever
    the tables are stored in.

    Args:
        weights: The head; tables inside a mapped file are not copied.
        top_k: K of the scorer; None is ``min(64, Dv)``.
        precision: What the weights are stored in.
        confidence: Add the confidence head.

    Raises:
        PreconditionError: K out of range, or a computation the head does not have.
        CheckpointError: A value that f16 has no room for.
    """
    if confidence and weights.confidence is None:
        raise PreconditionError("the checkpoint has no confidence head", hint="leave out confidence=true")
    reads = weights.confidence_input if confidence else Confidence.NONE
    present = computations_of(weights.type, reads)
    facts = HeadFacts(
        type=weights.type,
        rank=weights.rank,
        top_k=_top_k(weights, top_k),
        vocab_size=weights.vocab_size,
        draft_vocab_size=None if weights.d2t is None else weights.draft_vocab_size,
        hidden_size=weights.hidden_size,
    )
    inputs = {port for part in present for port in ports(weights.type, part, reads).inputs}
    graph = _HeadGraph(weights, facts, inputs, precision)
    outputs: dict[Port, ov.Output] = {}
    if Computation.DENSE in present:
        outputs |= graph.dense()
    if Computation.SCORER in present:
        outputs |= graph.scorer()
    if Computation.CONFIDENCE in present:
        outputs |= graph.confidence(reads)
    results = [
        ir.make_result(outputs[port], port) for part in present for port in ports(weights.type, part, reads).outputs
    ]
    model = ov.Model(results, list(graph.inputs.values()), _MODEL_NAME)
    ir.name_by_place(model, f"{_MODEL_NAME}/")
    write_facts(model, facts, present)
    return model


def _top_k(weights: HeadWeights, top_k: int | None) -> int:
    """K of the scorer; 0 when there is none."""
    if Computation.SCORER not in computations_of(weights.type):
        if top_k:
            raise PreconditionError(f"{weights.type} heads have no scorer", expected="no top-k", found=f"top-k {top_k}")
        return 0
    if top_k is None:
        return min(DEFAULT_TOP_K, weights.max_top_k)
    if not 1 <= top_k <= weights.max_top_k:
        pruned = "" if weights.d2t is None else ", the draft vocabulary"
        raise PreconditionError("top-k out of range", expected=f"1 to {weights.max_top_k}{pruned}", found=top_k)
    return top_k


class _HeadGraph:
    """Inputs and tables that the computations share."""

    def __init__(self, weights: HeadWeights, facts: HeadFacts, needed: set[Port], precision: Precision) -> None:
        self._type, self._facts = weights.type, facts
        sizes = {"V": facts.vocab_size, "r": facts.rank, "H": facts.hidden_size}
        self.inputs: dict[Port, ov.Node] = {}
        for port in INPUT_ORDER:
            if port in needed:
                kind = MARKOV_PORTS[port]
                shape = [sizes.get(dim) or -1 for dim in kind.dims]
                self.inputs[port] = ir.make_parameter(port, getattr(ov.Type, kind.element_type), shape)
        stored = dict(weights.tensors())
        stored["markov_w1"] = weights.w1[: weights.vocab_size]
        stored["markov_w2"] = weights.next_token_table()
        self._weights = {name: weight(array, name, precision) for name, array in stored.items()}

    def dense(self) -> dict[Port, ov.Output]:
        """Bias over the vocabulary after each previous token."""
        embedding = self._embedding(self.inputs[Port.PREV_TOKEN_IDS])
        outputs: dict[Port, ov.Output] = {}
        match self._type:
            case HeadType.GATED:
                correction = self._gated(embedding, self.inputs[Port.DRAFT_HIDDEN_STATES])
            case HeadType.RNN:
                correction, outputs[Port.NEXT_RNN_STATE] = self._recurrent(embedding)
            case _:
                correction = embedding
        bias = opset.matmul(correction, self._weights["markov_w2"], False, True)
        return {Port.MARKOV_BIAS: bias.output(0), **outputs}

    def scorer(self) -> dict[Port, ov.Output]:
        """The K best candidates of each row and the scores of all pairs with the row before."""
        k = opset.constant(np.array(self._facts.top_k, np.int64))
        k.set_friendly_name(TOP_K_CONSTANT)
        unary, ids = exact_top_k(self.inputs[Port.DRAFT_LOGITS].output(0), k.output(0))
        embedding = self._embedding(self._predecessors(ids))  # [R, K, r]
        match self._type:
            case HeadType.GATED:
                correction = self._gated(embedding, self.inputs[Port.DRAFT_HIDDEN_STATES], per_row=True)
            case HeadType.DFLASH2:
                gate = self._linear(self.inputs[Port.DRAFT_HIDDEN_STATES], "hidden_projection")
                correction = opset.multiply(embedding, opset.unsqueeze(gate, _i64([1])))
            case _:
                correction = embedding
        successors = opset.gather(self._weights["markov_w2"], ids, _i64(0))
        pairs = opset.matmul(correction, successors, False, True)
        edges = opset.add(pairs, opset.unsqueeze(unary, _i64([1])))
        return {Port.CANDIDATE_IDS: ids, Port.EDGE_SCORES: edges.output(0)}

    def confidence(self, reads: Confidence) -> dict[Port, ov.Output]:
        """The probability that each drafted token is accepted."""
        seen = self.inputs[Port.DRAFT_HIDDEN_STATES]
        if reads is Confidence.MARKOV:
            seen = opset.concat([seen, self._embedding(self.inputs[Port.PREV_TOKEN_IDS])], -1)
        score = opset.sigmoid(self._linear(seen, "confidence_proj"))
        return {Port.CONFIDENCE: opset.squeeze(score, _i64([1])).output(0)}

    def _embedding(self, ids: ov.Node | ov.Output) -> ov.Node:
        return opset.gather(self._weights["markov_w1"], ids, _i64(0))

    def _predecessors(self, ids: ov.Output) -> ov.Node:
        """Candidates of the row before, ``[R, K]``; the anchor in a block's first row."""
        anchors, begins = self.inputs[Port.ANCHOR_TOKEN_IDS], self.inputs[Port.BLOCK_BEGINS]
        axis, step = _i64([0]), _i64([1])
        # the row before; whatever stands in row 0 is overwritten, since a block begins there
        shifted = opset.concat(
            [opset.slice(ids, _i64([0]), _i64([1]), step, axis), opset.slice(ids, _i64([0]), _i64([-1]), step, axis)], 0
        )
        first_rows = opset.slice(begins, _i64([0]), _i64([-1]), step, axis)
        width = opset.gather(opset.shape_of(ids, "i64"), _i64([1]), _i64(0))
        blocks = opset.shape_of(anchors, "i64")
        repeated = opset.broadcast(opset.unsqueeze(anchors, _i64([1])), opset.concat([blocks, width], 0))
        return opset.scatter_update(shifted, first_rows, repeated, _i64(0))

    def _gated(self, embedding: ov.Node, hidden: ov.Node, *, per_row: bool = False) -> ov.Node:
        """``sigmoid(Wg [h ; e] + bg) * e``, the two halves of Wg apart: a row has one h and, in the scorer, K e."""
        rank = self._facts.rank
        halves = opset.variadic_split(self._weights["gate_proj.weight"], _i64(1), _i64([-1, rank]))
        of_hidden = opset.matmul(hidden, halves.output(0), False, True)
        if "gate_proj.bias" in self._weights:
            of_hidden = opset.add(of_hidden, self._weights["gate_proj.bias"])
        if per_row:
            of_hidden = opset.unsqueeze(of_hidden, _i64([1]))
        of_embedding = opset.matmul(embedding, halves.output(1), False, True)
        return opset.multiply(opset.sigmoid(opset.add(of_hidden, of_embedding)), embedding)

    def _recurrent(self, embedding: ov.Node) -> tuple[ov.Node, ov.Output]:
        """``[g; c; o] = Wj [s ; e ; h] + bj``; gives ``tanh(o)`` and the next state ``σ(g) s + (1 - σ(g)) tanh(c)``."""
        state, hidden = self.inputs[Port.RNN_STATE], self.inputs[Port.DRAFT_HIDDEN_STATES]
        joint = self._linear(opset.concat([state, embedding, hidden], -1), "joint_proj")
        gate, candidate, output = opset.split(joint, _i64(-1), 3).outputs()
        share = opset.sigmoid(gate)
        kept = opset.multiply(share, state)
        fresh = opset.multiply(opset.subtract(opset.constant(np.float32(1)), share), opset.tanh(candidate))
        return opset.tanh(output), opset.add(kept, fresh).output(0)

    def _linear(self, value: ov.Node, name: str) -> ov.Node:
        product = opset.matmul(value, self._weights[f"{name}.weight"], False, True)
        bias = self._weights.get(f"{name}.bias")
        return product if bias is None else opset.add(product, bias)


def _i64(value: object) -> ov.Node:
    return opset.constant(np.array(value, np.int64))
