"""The FC of a draft is found by what it is connected to, and nothing else is taken for one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from ovgraft import drafts, ir

WIDTH, HIDDEN = 12, 4
Wire = Callable[[ov.Output], list[ov.Output]]


def find(wire: Wire, element_type: ov.Type = ov.Type.f32) -> tuple[drafts.HiddenStateFc | None, list[str]]:
    """The FC of a model whose ``hidden_states`` is wired up by ``wire``, and the codes against it."""
    states = ops.parameter([-1, -1, WIDTH], element_type, "hidden_states")
    model = ov.Model([ops.result(output) for output in wire(states.output(0))], [states])
    graph = ir.Graph(model)
    fc, reasons = drafts.find_fc(graph, graph.index(states))
    return fc, [reason.code for reason in reasons]


def weight(rows: int = HIDDEN, columns: int = WIDTH, dtype: type = np.float32) -> ov.Output:
    return ops.constant(np.ones((rows, columns), dtype)).output(0)


def project(states: ov.Output) -> ov.Output:
    return ops.matmul(states, weight(), False, True).output(0)


def dimension(states: ov.Output, index: int) -> ov.Output:
    shape = ops.shape_of(states, output_type="i64")
    return ops.gather(shape, ops.constant(np.array([index])), ops.constant(np.int64(0))).output(0)


def test_plain() -> None:
    fc, codes = find(lambda states: [ops.relu(project(states)).output(0)])
    assert codes == []
    assert fc is not None
    assert (fc.in_width, fc.out_width, fc.bias, len(fc.nodes)) == (WIDTH, HIDDEN, None, 1)


def test_weights_the_other_way_round() -> None:
    fc, _ = find(lambda states: [ops.relu(ops.matmul(states, weight(WIDTH, HIDDEN), False, False)).output(0)])
    assert fc is not None
    assert (fc.in_width, fc.out_width) == (WIDTH, HIDDEN)


@pytest.mark.parametrize("first", [False, True])
def test_bias(first: bool) -> None:
    def wire(states: ov.Output) -> list[ov.Output]:
        row = ops.constant(np.ones((1, 1, HIDDEN), np.float32))
        added = ops.add(row, project(states)) if first else ops.add(project(states), row)
        return [ops.relu(added).output(0)]

    fc, _ = find(wire)
    assert fc is not None
    assert fc.bias is not None
    assert [node.get_type_name() for node in fc.nodes] == ["MatMul", "Add"]


def test_an_add_of_something_else_is_no_bias() -> None:
    def wire(states: ov.Output) -> list[ov.Output]:
        product = project(states)
        shifted = ops.add(product, ops.constant(np.ones((1, 1, HIDDEN), np.float32)))
        return [ops.multiply(product, shifted).output(0)]

    fc, _ = find(wire)
    assert fc is not None
    assert fc.bias is None
    assert fc.output.get_node().get_type_name() == "MatMul"


def test_computed_in_another_type() -> None:
    def wire(states: ov.Output) -> list[ov.Output]:
        half = ops.convert(states, ov.Type.f16)
        product = ops.matmul(half, weight(dtype=np.float16), False, True)
        return [ops.relu(ops.convert(product, ov.Type.f32)).output(0)]

    fc, _ = find(wire)
    assert fc is not None
    assert [node.get_type_name() for node in fc.nodes] == ["Convert", "MatMul", "Convert"]


def test_result_of_another_type_is_refused() -> None:
    def wire(states: ov.Output) -> list[ov.Output]:
        half = ops.convert(states, ov.Type.f16)
        return [ops.relu(ops.matmul(half, weight(dtype=np.float16), False, True)).output(0)]

    assert find(wire) == (None, ["fc-type"])


def test_leading_dimensions_may_be_read() -> None:
    def wire(states: ov.Output) -> list[ov.Output]:
        return [ops.relu(project(states)).output(0), dimension(states, 0), dimension(states, -2)]

    fc, codes = find(wire)
    assert codes == []
    assert fc is not None
    assert len(fc.shape_readers) == 2


@pytest.mark.parametrize("index", [2, -1])
def test_the_last_dimension_may_not(index: int) -> None:
    assert find(lambda states: [project(states), dimension(states, index)]) == (None, ["reads-width"])


def test_nor_the_whole_shape() -> None:
    assert find(lambda states: [project(states), ops.shape_of(states).output(0)]) == (None, ["reads-width"])


@pytest.mark.parametrize(
    ("wire", "codes"),
    [
        (lambda states: [project(states), ops.relu(states).output(0)], ["second-consumer"]),
        (lambda states: [project(states), project(states)], ["several-fcs"]),
        (lambda states: [ops.relu(states).output(0)], ["second-consumer"]),
        (lambda states: [ops.matmul(states, ops.relu(states), False, True).output(0)], ["no-fc", "second-consumer"]),
        (lambda states: [ops.matmul(weight(), states, False, True).output(0)], ["no-fc"]),
        (lambda states: [ops.matmul(states, weight(), True, True).output(0)], ["no-fc"]),
        (lambda states: [dimension(states, 1)], ["unused-hidden-states"]),
    ],
)
def test_what_is_no_fc(wire: Wire, codes: list[str]) -> None:
    fc, found = find(wire)
    assert fc is None
    assert sorted(found) == sorted(codes)
