"""Small pieces of a draft's graph, named as exporters name them."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.drafts.building.decompression import widen
from ovgraft.drafts.markov.constants import weight
from ovgraft.drafts.weight_source import WeightSource
from ovgraft.ir import opset


def ints(*values: int) -> ov.Node:
    """An i64 constant of rank one."""
    return opset.constant(np.array(values, np.int64))


def scalar(value: int) -> ov.Node:
    """An i64 scalar."""
    return opset.constant(np.array(value, np.int64))


class Scope:
    """Weights of one draft and names for the nodes over them.

    Args:
        weights: Tensors under canonical names.
    """

    def __init__(self, weights: WeightSource) -> None:
        self._weights = weights

    def weight(self, name: str) -> ov.Output:
        """A tensor as f32, in the file's own type and memory until a model is compiled."""
        return weight(self._weights.tensor(name), f"self.{name}")

    def matrix(self, name: str) -> ov.Output:
        """The same, in the file's own type when it is computed with too."""
        output = self.weight(name)
        if output.get_node().get_type_name() == "Constant":
            return output
        return widen(output.get_node().input_value(0), f"self.{name}/convert")

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor."""
        return name in self._weights

    def constant(self, values: NDArray[Any], name: str) -> ov.Output:
        """A named constant."""
        node = opset.constant(values)
        node.set_friendly_name(f"__module.{name}")
        return node.output(0)

    def number(self, value: float) -> ov.Node:
        """An f32 scalar."""
        return opset.constant(np.array(value, np.float32))

    def name(self, node: ov.Node, name: str) -> ov.Output:
        """Name a node."""
        node.set_friendly_name(f"__module.{name}")
        return node.output(0)

    def linear(self, rows: ov.Output, name: str) -> ov.Output:
        """``rows @ weight.T (+ bias)``."""
        product = self.name(opset.matmul(rows, self.matrix(f"{name}.weight"), False, True), f"{name}/MatMul")
        if not self.has(f"{name}.bias"):
            return product
        return self.name(opset.add(product, self.weight(f"{name}.bias")), f"{name}/Add")

    def norm(self, rows: ov.Output, name: str, eps: float, *, scaled: bool = True) -> ov.Output:
        """RMSNorm over the last axis: ``x / sqrt(mean(x ** 2) + eps) * weight``.

        Written as exporters write it, which the CPU plugin fuses into one op.
        """
        square = opset.power(rows, self.number(2.0))
        mean = opset.reduce_mean(square, ints(-1), True)
        root = opset.sqrt(opset.add(mean, self.number(eps)))
        normed = opset.multiply(rows, opset.divide(self.number(1.0), root))
        if not scaled:
            return self.name(normed, f"{name}/Multiply")
        return self.name(opset.multiply(self.weight(f"{name}.weight"), normed), f"{name}/Multiply_1")
