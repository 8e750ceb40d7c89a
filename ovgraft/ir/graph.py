"""An indexed view of a model: plain lists where OpenVINO has one Python call per question."""

from __future__ import annotations

import openvino as ov

from ovgraft.noderef import NodeRef


class Graph:
    """A model's nodes and edges as they are now; an edit of the model makes the view stale.

    Nodes are numbered in topological order, so an edge always leads from a lower to a higher number. Building it costs
    some 5 us a node; no constant is read.

    Attributes:
        model: The model, kept alive.
        nodes: All live nodes, as ``Model.get_ordered_ops()`` has them.
        types: OpenVINO op type of each node, for example ``MatMul``.
        names: Friendly name of each node.
        inputs: For each node, by input port: (producer, output port of the producer).
        consumers: For each node: (own output port, consumer, input port of the consumer), ordered by consumer.
    """

    __slots__ = ("_index", "consumers", "inputs", "model", "names", "nodes", "types")

    def __init__(self, model: ov.Model) -> None:
        self.model = model
        self.nodes: list[ov.Node] = model.get_ordered_ops()
        # pybind hands out one Python object per live node and the list keeps them alive, so identity is a sound key;
        # == and hash() of nodes are not (== builds an Equal op).
        self._index = {id(node): i for i, node in enumerate(self.nodes)}
        self.types: list[str] = [node.get_type_name() for node in self.nodes]
        self.names: list[str] = [node.get_friendly_name() for node in self.nodes]
        self.inputs: list[list[tuple[int, int]]] = [
            [(self._index[id(source.get_node())], source.get_index()) for source in node.input_values()]
            if kind != "Constant"
            else []
            for kind, node in zip(self.types, self.nodes, strict=True)
        ]
        self.consumers: list[list[tuple[int, int, int]]] = [[] for _ in self.nodes]
        for consumer, sources in enumerate(self.inputs):
            for port, (producer, output_port) in enumerate(sources):
                self.consumers[producer].append((output_port, consumer, port))

    def __len__(self) -> int:
        return len(self.nodes)

    def index(self, node: ov.Node) -> int:
        """The number of ``node``.

        Raises:
            KeyError: The node is not in this view: of another model, dead, or newer than the view.
        """
        try:
            return self._index[id(node)]
        except KeyError:
            raise KeyError(f"{node.get_type_name()} '{node.get_friendly_name()}' is not in this view") from None

    def find(self, type: str) -> list[int]:
        """All nodes of one op type, in topological order."""
        return [i for i, found in enumerate(self.types) if found == type]

    def output(self, i: int, port: int = 0) -> ov.Output:
        """Output ``port`` of node ``i``."""
        return self.nodes[i].output(port)

    def is_real(self, i: int, port: int = 0) -> bool:
        """Whether output ``port`` of node ``i`` carries floating-point numbers; an undecided type counts as such."""
        element_type = self.nodes[i].get_output_element_type(port)
        return bool(element_type.is_real() or element_type.is_dynamic())

    def ref(self, i: int) -> NodeRef:
        """How to name node ``i`` to people."""
        return NodeRef(self.names[i], self.types[i], i)
