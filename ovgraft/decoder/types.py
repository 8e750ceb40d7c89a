"""What reading a decoder yields: plain records over live outputs and nodes of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import openvino as ov

from ovgraft.ir.graph import Graph

LayerConvention = Literal["output", "input"]


@dataclass(frozen=True, eq=False)
class Layer:
    """One decoder layer, as a hook on the PyTorch module would see it.

    Attributes:
        index: Position in the stack, from 0.
        entry: The value that enters the layer, [.., rows, H], f32.
        output: The raw output of the layer: before any final norm, before anything added between layers.
        kind: How the layer mixes positions: ``attention``, ``linear_attention``, ``convolution``, ``state_space``, or
            several joined by ``+``; ``recurrence`` where a state meets the rows in none of these ways. A loop over rows
            counts as linear attention: exporters write Mamba-2 as one too.
        attention: The ops that mix positions: attention ops, loops, and the ops where a state meets the new rows.
        states: Ids of the variables the layer updates; empty when it reads another layer's.
        residuals: The residual stream inside the layer after each branch; the first is the post-attention residual.
    """

    index: int
    entry: ov.Output
    output: ov.Output
    kind: str
    attention: tuple[ov.Node, ...]
    states: tuple[str, ...]
    residuals: tuple[ov.Output, ...]


@dataclass(frozen=True, eq=False)
class Embedding:
    """The token embedding.

    Attributes:
        gather: The lookup.
        table: What feeds its input 0: the end of a weight subgraph, [V, H].
        ids: What feeds its input 1: token ids as the lookup takes them.
        output: The lookup's own output, [.., rows, H], before any scale.
        vocab_size: Rows of the table, V.
        width: Columns of the table, H.
        scale: Product of the scalar constants multiplied onto the lookup before anything else; None without any.
        scaled: The value after those multiplications; ``output`` without any.
    """

    gather: ov.Node
    table: ov.Output
    ids: ov.Output
    output: ov.Output
    vocab_size: int
    width: int
    scale: float | None
    scaled: ov.Output


@dataclass(frozen=True, eq=False)
class LmHead:
    """The output layer.

    Attributes:
        matmul: The product of hidden states and weight.
        weight: What feeds its input 1: the end of a weight subgraph, [V, H] with ``transpose_b``, else [H, V].
        hidden: The post-norm value of every row, [.., rows, H]; where rows are selected before the product, the value
            before the selection.
        logits: What feeds the logits Result, after ``post_ops``.
        vocab_size: V.
        width: H.
        transpose_b: Flag of the product.
        bias: The constant [.., V] added to the product, None without one.
        post_ops: Ops between product and Result (bias, scale, soft cap, reshapes), in order.
    """

    matmul: ov.Node
    weight: ov.Output
    hidden: ov.Output
    logits: ov.Output
    vocab_size: int
    width: int
    transpose_b: bool
    bias: ov.Output | None
    post_ops: tuple[ov.Node, ...]


@dataclass(frozen=True, eq=False)
class LayerStack:
    """The layers of a decoder or of a draft, and the two values they lie between.

    Attributes:
        model: The model.
        graph: Its indexed view; stale after an edit, and so is this record.
        source: Where the stream begins: in a decoder the embedding's output, or the ``inputs_embeds`` parameter.
        sink: Where it ends: what enters lm_head, or leaves a model without one.
        layers: In order.
    """

    model: ov.Model
    graph: Graph
    source: ov.Output
    sink: ov.Output
    layers: tuple[Layer, ...]


@dataclass(frozen=True, eq=False)
class Decoder(LayerStack):
    """A decoder LM graph, read.

    Attributes:
        embedding: The token embedding; None when the model takes ``inputs_embeds``.
        lm_head: The output layer.
    """

    embedding: Embedding | None
    lm_head: LmHead

    def hidden_state(self, i: int, convention: LayerConvention = "output") -> ov.Output:
        """The hidden state of layer ``i``, as exporters and runtimes count.

        Args:
            i: Layer number, 0 to N-1.
            convention: ``output`` takes what the layer yields, and for the last layer the post-norm value that enters
                lm_head; ``input`` takes what enters the layer.

        Raises:
            IndexError: There is no such layer.
        """
        if not 0 <= i < len(self.layers):
            raise IndexError(f"layer {i} of a decoder with layers 0 to {len(self.layers) - 1}")
        if convention == "input":
            return self.layers[i].entry
        return self.lm_head.hidden if i == len(self.layers) - 1 else self.layers[i].output
