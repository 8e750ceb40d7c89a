"""DFlash-2's grouped dynamic convolutions over the rows of a block.

``D = (P u)`` reshaped to ``[rows, 2, taps, H / g]``;
``conv_s(z)[i, c] = sum_t (base[s, t, c] + D[i, s, t, c // g]) * z[i - t, c]``, where a tap that reaches before the
block's first row reads zero.
"""

from __future__ import annotations

import openvino as ov

from ovgraft.drafts.building.graph import Scope, ints, scalar
from ovgraft.drafts.building.layout import Layout
from ovgraft.drafts.spec import Backbone
from ovgraft.ir import opset


class DynamicConvolution:
    """The two convolutions around one sublayer, with kernels made from its normed input.

    Args:
        scope: Weights and names.
        name: ``layers.0.attention_conv`` or ``layers.0.mlp_conv``.
        normed: f32 ``[B, rows, H]``, the input of the sublayer after its norm.
        layout: How rows lie.
        backbone: Sizes.
    """

    def __init__(self, scope: Scope, name: str, normed: ov.Output, layout: Layout, backbone: Backbone) -> None:
        assert backbone.convolution is not None
        self._scope, self._name, self._layout = scope, name, layout
        self._taps, self._group = backbone.convolution.kernel_size, backbone.convolution.group_size
        self._groups = backbone.hidden_size // self._group
        product = opset.matmul(normed, scope.matrix(f"{name}.kernel_projection.weight"), False, True)
        pattern = ints(0, 0, 2 * self._taps, self._groups)
        self._kernels = opset.reshape(product, pattern, special_zero=True).output(0)
        self._base = scope.weight(f"{name}.base_kernel")

    def __call__(self, rows: ov.Output, side: int) -> ov.Output:
        """Convolve; ``side`` 0 is before the sublayer, 1 behind it."""
        total = None
        for tap in range(self._taps):
            moved = rows if tap == 0 else self._layout.shifted(rows, tap)
            term = opset.multiply(moved, self._kernel(side, tap))
            total = term if total is None else opset.add(total, term)
        assert total is not None
        return self._scope.name(total, f"{self._name}.{side}/Add")

    def _kernel(self, side: int, tap: int) -> ov.Node:
        """f32 ``[B, rows, H]``: base kernel plus the row's own, the same for the channels of a group."""
        own = opset.gather(self._kernels, scalar(side * self._taps + tap), scalar(2))
        spread = opset.broadcast(
            opset.unsqueeze(own, ints(3)), ints(1, 1, 1, self._group), broadcast_spec="BIDIRECTIONAL"
        )
        wide = opset.reshape(spread, ints(0, 0, self._groups * self._group), special_zero=True)
        base = opset.gather(opset.gather(self._base, scalar(side), scalar(0)), scalar(tap), scalar(0))
        return opset.add(wide, base)
