"""The same heads as ONNX graphs for onnx.reference: a second witness, put together differently from the opset graph.

Tables are Float initializers, predecessors come from a comparison instead of a scatter, and the gate reads one
concatenated vector as the published code does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ovgraft.drafts.markov import HeadWeights
from ovgraft.drafts.spec import HeadType

Array = NDArray[Any]
_OPSET = 18


class _Graph:
    def __init__(self, weights: HeadWeights) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self.type = weights.type
        for name, array in weights.tensors():
            self.constant(name, array.astype(np.float32))
        self.constant("markov_w2", weights.next_token_table().astype(np.float32))
        self.constant("first", np.array([0], np.int64))
        self.constant("second", np.array([1], np.int64))

    def constant(self, name: str, value: Array) -> str:
        self._initializers = [kept for kept in self._initializers if kept.name != name]
        self._initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"{op}_{len(self._nodes)}_{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def linear(self, value: str, name: str) -> str:
        weight = self.add("Transpose", f"{name}.weight", perm=[1, 0])
        product = self.add("MatMul", value, weight)
        known = {initializer.name for initializer in self._initializers}
        return str(self.add("Add", product, f"{name}.bias") if f"{name}.bias" in known else product)

    def corrected(self, embedding: str, hidden: str | None, state: str | None = None) -> tuple[str, str | None]:
        """The factor of the next-token table; the next state of an rnn head."""
        if self.type is HeadType.VANILLA:
            return embedding, None
        if self.type is HeadType.DFLASH2:
            return self.add("Mul", embedding, self.linear(str(hidden), "hidden_projection")), None
        if self.type is HeadType.GATED:
            seen = self.add("Concat", str(hidden), embedding, axis=-1)
            return self.add("Mul", embedding, self.add("Sigmoid", self.linear(seen, "gate_proj"))), None
        seen = self.add("Concat", str(state), embedding, str(hidden), axis=-1)
        gate, candidate, output = self.add("Split", self.linear(seen, "joint_proj"), outputs=3, axis=-1, num_outputs=3)
        share = self.add("Sigmoid", gate)
        candidate = self.add("Tanh", candidate)
        change = self.add("Mul", share, self.add("Sub", str(state), candidate))  # g s + (1 - g) c = c + g (s - c)
        return self.add("Tanh", output), self.add("Add", candidate, change)

    def run(self, feeds: dict[str, Array], outputs: dict[str, str | None]) -> dict[str, Array]:
        kinds = {np.dtype(np.int64): TensorProto.INT64, np.dtype(np.float32): TensorProto.FLOAT}
        named = {name: value for name, value in outputs.items() if value is not None}
        inputs = [helper.make_tensor_value_info(name, kinds[value.dtype], None) for name, value in feeds.items()]
        results = [helper.make_tensor_value_info(value, TensorProto.UNDEFINED, None) for value in named.values()]
        graph = helper.make_graph(self._nodes, "head", inputs, results, self._initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
        found = ReferenceEvaluator(model).run(None, feeds)
        return dict(zip(named, found, strict=True))


def dense(weights: HeadWeights, previous: Array, hidden: Array | None, state: Array | None) -> dict[str, Array]:
    """``markov_bias`` and, for rnn, ``next_rnn_state``."""
    graph = _Graph(weights)
    feeds = {"prev": previous.astype(np.int64), "hidden": hidden, "state": state}
    embedding = graph.add("Gather", "markov_w1", "prev", axis=0)
    correction, next_state = graph.corrected(embedding, "hidden", "state")
    bias = graph.add("MatMul", correction, graph.add("Transpose", "markov_w2", perm=[1, 0]))
    given = {name: value for name, value in feeds.items() if value is not None}
    return graph.run(given, {"markov_bias": bias, "next_rnn_state": next_state})


def scorer(
    weights: HeadWeights, logits: Array, anchors: Array, begins: Array, hidden: Array | None, k: int
) -> dict[str, Array]:
    """``candidate_ids`` and ``edge_scores``; values of a row must differ, since ONNX leaves ties open."""
    graph = _Graph(weights)
    graph.constant("k", np.array([k], np.int64))
    graph.constant("one", np.array(1, np.int64))
    graph.constant("row_of", np.arange(len(logits), dtype=np.int64))
    unary, ids = graph.add("TopK", "logits", "k", outputs=2, axis=-1, largest=1, sorted=1)
    # the block of a row: how many blocks begin at or before it, less one
    begun = graph.add(
        "LessOrEqual", graph.add("Unsqueeze", "starts", "first"), graph.add("Unsqueeze", "row_of", "second")
    )
    count = graph.add("ReduceSum", graph.add("Cast", begun, to=TensorProto.INT64), "second", keepdims=0)
    block = graph.add("Sub", count, "one")
    is_first = graph.add("Equal", graph.add("Gather", "starts", block, axis=0), "row_of")
    anchor = graph.add("Unsqueeze", graph.add("Gather", "anchors", block, axis=0), "second")
    before = graph.add("Gather", ids, graph.constant("before", np.maximum(np.arange(len(logits)) - 1, 0)), axis=0)
    predecessor = graph.add("Where", graph.add("Unsqueeze", is_first, "second"), anchor, before)
    embedding = graph.add("Gather", "markov_w1", predecessor, axis=0)
    seen = None
    if hidden is not None:
        seen = graph.add("Unsqueeze", "hidden", "second")
        if weights.type is HeadType.GATED:
            shape = graph.constant("shape", np.array([1, k, 1], np.int64))
            seen = graph.add("Tile", seen, shape)
    correction, _ = graph.corrected(embedding, seen)
    successors = graph.add("Transpose", graph.add("Gather", "markov_w2", ids, axis=0), perm=[0, 2, 1])
    edges = graph.add("Add", graph.add("MatMul", correction, successors), graph.add("Unsqueeze", unary, "second"))
    feeds = {"logits": logits, "anchors": anchors.astype(np.int64), "starts": begins[:-1].astype(np.int64)}
    if hidden is not None:
        feeds["hidden"] = hidden
    return graph.run(feeds, {"candidate_ids": ids, "edge_scores": edges})
