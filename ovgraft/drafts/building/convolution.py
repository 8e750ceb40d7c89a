"""DFlash-2's grouped dynamic convolutions over the rows of a block.

``D = (P u)`` reshaped to ``[rows, 2, taps, H / g]``;
``conv_s(z)[i, c] = sum_t (base[s, t, c] + D[i, s, t, c // g]) * z[i - t, c]``, where a tap that reaches before the
block's first row reads zero.
"""

from __future__ import annotations

import numpy as np
import openvino as ov

from ovgraft.drafts.building.graph import Scope, ints, scalar
from ovgraft.drafts.spec import Backbone
from ovgraft.ir import opset

_END = np.iinfo(np.int64).max


class BlockRows:
    """Rows of a batch of equal blocks, ``[B, block, H]``: axis 1 is the block."""

    def shifted(self, rows: ov.Output, taps: int) -> ov.Output:
        """Row ``i - taps`` at row ``i``, zero before the block."""
        shape = opset.shape_of(rows, output_type="i64")
        batch, width = opset.gather(shape, ints(0), scalar(0)), opset.gather(shape, ints(2), scalar(0))
        zeros = opset.broadcast(opset.constant(np.float32(0)), opset.concat([batch, ints(taps), width], 0))
        padded = opset.concat([zeros, rows], 1)
        return opset.slice(padded, ints(0), ints(-taps), ints(1), ints(1)).output(0)


class PackedRows:
    """Rows of a per-row draft, whatever the batch axis: blocks are runs of ones in ``token_type_ids``.

    A block follows at least one context row, so a 0 before a 1 is where it begins.

    Args:
        token_type_ids: i64 ``[B, S]``.
    """

    def __init__(self, token_type_ids: ov.Output) -> None:
        self._types = opset.reshape(token_type_ids, ints(-1), special_zero=False).output(0)
        self._reach: dict[int, ov.Output] = {}

    def shifted(self, rows: ov.Output, taps: int) -> ov.Output:
        """Row ``i - taps`` at row ``i``, zero where that row is not of the same block."""
        shape = opset.shape_of(rows, output_type="i64")
        width = opset.gather(shape, ints(2), scalar(0))
        flat = opset.reshape(rows, opset.concat([ints(-1), width], 0), special_zero=False)
        zeros = opset.broadcast(opset.constant(np.float32(0)), opset.concat([ints(taps), width], 0))
        moved = opset.slice(opset.concat([zeros, flat], 0), ints(0), ints(-taps), ints(1), ints(0))
        inside = opset.select(self._reaches(taps), moved, opset.constant(np.float32(0)))
        return opset.reshape(inside, shape, special_zero=False).output(0)

    def _reaches(self, taps: int) -> ov.Output:
        """Bool ``[rows, 1]``: this row and the ``taps`` before it are ones."""
        if taps not in self._reach:
            seen = opset.equal(self._types, scalar(1))
            for step in range(1, taps + 1):
                padded = opset.concat([opset.constant(np.zeros(step, np.int64)), self._types], 0)
                earlier = opset.slice(padded, ints(0), ints(-step), ints(1), ints(0))
                seen = opset.logical_and(seen, opset.equal(earlier, scalar(1)))
            self._reach[taps] = opset.unsqueeze(seen, ints(1)).output(0)
        return self._reach[taps]


Rows = BlockRows | PackedRows


class DynamicConvolution:
    """The two convolutions around one sublayer, with kernels made from its normed input.

    Args:
        scope: Weights and names.
        name: ``layers.0.attention_conv`` or ``layers.0.mlp_conv``.
        normed: f32 ``[B, rows, H]``, the input of the sublayer after its norm.
        rows: How rows lie.
        backbone: Sizes.
    """

    def __init__(self, scope: Scope, name: str, normed: ov.Output, rows: Rows, backbone: Backbone) -> None:
        assert backbone.convolution is not None
        self._scope, self._name, self._rows = scope, name, rows
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
            moved = rows if tap == 0 else self._rows.shifted(rows, tap)
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
