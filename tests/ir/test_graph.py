from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from ovgraft.ir.graph import Graph
from ovgraft.noderef import NodeRef


def two_branches() -> ov.Model:
    x = ops.parameter([-1, 4], np.float32, name="x")
    halves = ops.split(x, ops.constant(1, dtype=np.int64), 2, name="halves")
    total = ops.add(halves.output(1), halves.output(0), name="total")
    shape = ops.shape_of(total, name="shape")
    return ov.Model([ops.result(total, name="out"), ops.result(shape, name="dims")], [x], "two")


def test_edges_follow_ports_and_topological_order() -> None:
    graph = Graph(two_branches())
    total, halves = graph.names.index("total"), graph.names.index("halves")
    assert graph.inputs[total] == [(halves, 1), (halves, 0)]
    assert [(port, consumer, into) for port, consumer, into in graph.consumers[halves] if consumer == total] == [
        (1, total, 0),
        (0, total, 1),
    ]
    assert all(producer < consumer for consumer, edges in enumerate(graph.inputs) for producer, _ in edges)


def test_lookup_by_node_type_and_reference() -> None:
    model = two_branches()
    graph = Graph(model)
    for i, node in enumerate(model.get_ordered_ops()):
        assert graph.index(node) == i
    (total,) = graph.find("Add")
    assert graph.ref(total) == NodeRef("total", "Add", total)
    assert graph.output(total).get_node().get_friendly_name() == "total"
    assert graph.find("MatMul") == []


def test_real_typed_outputs() -> None:
    graph = Graph(two_branches())
    assert graph.is_real(graph.names.index("total"))
    assert not graph.is_real(graph.names.index("shape"))


def test_a_node_of_another_model_is_refused_by_name() -> None:
    graph = Graph(two_branches())
    stranger = ops.parameter([1], np.float32, name="stranger")
    with pytest.raises(KeyError, match="Parameter 'stranger' is not in this view"):
        graph.index(stranger)
