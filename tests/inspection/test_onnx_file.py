from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ovgraft import inspection
from ovgraft.errors import ModelFileError
from ovgraft.inspection import Request
from ovgraft.inspection.onnx_file import collect_onnx


def write(path: Path, *, external: bool = False) -> Path:
    weight = numpy_helper.from_array(np.zeros((4, 8), np.float32), "w")
    table = helper.make_tensor("t", TensorProto.INT4, [5], [1] * 5)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="mm"),
        helper.make_node("Softmax", ["y"], ["z"], name="[bold]", axis=-1),
        helper.make_node("Thing", ["z", ""], ["out"], domain="my.ops", text="a\u202eb"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [weight, table],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("my.ops", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0} if external else {}
    onnx.save(model, str(path), **options)
    return path


@pytest.mark.parametrize("external", [False, True])
def test_ports_ops_and_initializers(tmp_path: Path, external: bool) -> None:
    path = write(tmp_path / "m.onnx", external=external)
    if external:
        (tmp_path / "w.bin").unlink()  # nothing of it is read
    info = inspection.inspect(path, Request(weights=True)).packages[0].models[0]
    assert (info.kind, info.ops) == ("onnx", 3)
    assert [(port.names, port.element_type, port.shape) for port in info.inputs] == [(("x",), "f32", "[batch,4]")]
    assert info.outputs[0].shape == "[...]"
    assert info.op_counts == {"MatMul": 1, "Softmax": 1, "my.ops.Thing": 1}
    assert [(entry.element_type, entry.bytes) for entry in info.weights] == [("f32", 128), ("i4", 3)]
    assert info.rt_info["opset/my.ops"] == "1"


def test_nodes_and_neighbours(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx")
    nodes = {node.node.name: node for node in collect_onnx(path, Request(around="mm")).nodes}
    assert {name: node.distance for name, node in nodes.items()} == {"x": 1, "w": 1, "mm": 0, "[bold]": 1}
    assert [consumer.name for consumer in nodes["mm"].outputs[0].consumers] == ["[bold]"]
    (softmax,) = collect_onnx(path, Request(node=("[bold]",))).nodes
    assert softmax.attributes == {"axis": -1}
    graph = collect_onnx(path, Request(graph=True)).graph
    assert graph is not None
    assert graph.types == ("Input", "Initializer", "Initializer", "MatMul", "Softmax", "my.ops.Thing")
    assert graph.inputs == ((), (), (), (0, 1), (3,), (4,))


@pytest.mark.parametrize("content", [b"", b"x", b"\x00" * 64, b"<html>", b"\xff" * 300])
def test_what_is_no_onnx_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="not an ONNX model"):
        collect_onnx(path)
