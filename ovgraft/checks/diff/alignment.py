"""Which node of one model is which of the other?

An edit changes the forward colour of what lies below it and the backward colour of what lies above it. So nodes whose
two colours agree are certain, nodes above or below all edits are found by the colour that is left, and what lies
between edits is reached from its neighbours, port by port.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from ovgraft.checks.diff.colors import Colors, Table, color
from ovgraft.ir.graph import Graph

_ENDS = ("Parameter", "Result")


@dataclass(frozen=True)
class Alignment:
    """Two graphs side by side.

    Attributes:
        a: The first graph.
        b: The second.
        to_b: For each node of ``a``: its node in ``b``, or -1.
        to_a: For each node of ``b``: its node in ``a``, or -1.
        colors_a: Colours of ``a``.
        colors_b: Colours of ``b``, of the same table.
    """

    a: Graph
    b: Graph
    to_b: list[int]
    to_a: list[int]
    colors_a: Colors
    colors_b: Colors

    def relabeled(self) -> Iterable[tuple[int, int]]:
        """Pairs whose own attributes or values differ."""
        for i, j in enumerate(self.to_b):
            if j >= 0 and self.colors_a.label[i] != self.colors_b.label[j]:
                yield i, j

    def rewired(self) -> Iterable[tuple[int, int, tuple[int, ...]]]:
        """Pairs that read other nodes, and on which input ports."""
        for i, j in enumerate(self.to_b):
            if j < 0:
                continue
            left, right = self.a.inputs[i], self.b.inputs[j]
            moved = [(self.to_b[producer], port) for producer, port in left]
            if moved != right:
                longest = max(len(moved), len(right))
                ports = [at for at in range(longest) if moved[at : at + 1] != right[at : at + 1]]
                yield i, j, tuple(ports)


def align(a: Graph, b: Graph) -> Alignment:
    """Match the nodes of two graphs by structure; names break ties between nodes that nothing else tells apart."""
    table = Table()
    matcher = _Matcher(a, b, color(a, table), color(b, table))
    matcher.match_ends()
    certain = (matcher.both(0), matcher.both(1))
    matcher.match_unique(*certain)
    matcher.spread()
    for left, right in (
        certain,
        (matcher.left.forward, matcher.right.forward),
        (matcher.left.backward, matcher.right.backward),
    ):
        matcher.match_groups(left, right)
        matcher.spread()
    matcher.spread(loose=True)
    return Alignment(a, b, matcher.to_b, matcher.to_a, matcher.left, matcher.right)


class _Matcher:
    def __init__(self, a: Graph, b: Graph, left: Colors, right: Colors) -> None:
        self.a, self.b, self.left, self.right = a, b, left, right
        self.to_b, self.to_a = [-1] * len(a), [-1] * len(b)
        self._new: deque[tuple[int, int]] = deque()
        self._all: list[tuple[int, int]] = []

    def both(self, side: int) -> Sequence[Hashable]:
        """Forward and backward colour together."""
        colors = (self.left, self.right)[side]
        return list(zip(colors.forward, colors.backward, strict=True))

    def match_ends(self) -> None:
        """Inputs and outputs are known by their tensor names: that is what their users know them by."""
        for kind in _ENDS:
            named = [
                {
                    frozenset(graph.nodes[i].output(0).get_names()): i
                    for i in graph.find(kind)
                    if graph.nodes[i].output(0).get_names()
                }
                for graph in (self.a, self.b)
            ]
            for names, i in named[0].items():
                if names in named[1]:
                    self._match(i, named[1][names])

    def match_unique(self, left: Sequence[Hashable], right: Sequence[Hashable]) -> None:
        """Pair nodes whose colour one node has on either side."""
        for ours, theirs in self._groups(left, right):
            if len(ours) == len(theirs) == 1:
                self._match(ours[0], theirs[0])

    def match_groups(self, left: Sequence[Hashable], right: Sequence[Hashable]) -> None:
        """Pair the nodes of each colour: namesakes, then by place; a pair tells its neighbours before the next one."""
        for ours, theirs in self._groups(left, right):
            names = {self.b.names[j]: j for j in theirs}
            for i in ours:
                j = names.get(self.a.names[i], -1)
                if j >= 0 and self._free(i, j):
                    self._match(i, j)
                    self.spread()
            rest = [j for j in theirs if self.to_a[j] < 0]
            for i in ours:
                while rest and self.to_a[rest[0]] >= 0:
                    rest.pop(0)
                if rest and self.to_b[i] < 0:
                    self._match(i, rest.pop(0))
                    self.spread()

    def spread(self, *, loose: bool = False) -> None:
        """Follow the edges of all new pairs.

        Args:
            loose: Also pair neighbours of one op type whose attributes differ, from all pairs there are.
        """
        if loose:
            self._new = deque(self._all)
        while self._new:
            i, j = self._new.popleft()
            for (x, x_port), (y, y_port) in zip(self.a.inputs[i], self.b.inputs[j], strict=False):
                if x_port == y_port and self._free(x, y) and self._alike(x, y, loose):
                    self._match(x, y)
            self._spread_down(i, j, loose)

    def _spread_down(self, i: int, j: int, loose: bool) -> None:
        waiting: dict[Hashable, list[int]] = defaultdict(list)
        for port, consumer, at in self.b.consumers[j]:
            if self.to_a[consumer] < 0:
                waiting[(port, at, self._kind_b(consumer, loose))].append(consumer)
        if not waiting:
            return
        ours: dict[Hashable, list[int]] = defaultdict(list)
        for port, consumer, at in self.a.consumers[i]:
            if self.to_b[consumer] < 0:
                ours[(port, at, self._kind_a(consumer, loose))].append(consumer)
        for key, nodes in ours.items():
            # several alike are left to their other neighbours, which can tell them apart
            if len(nodes) == len(waiting.get(key, ())) == 1 and self._free(nodes[0], waiting[key][0]):
                self._match(nodes[0], waiting[key][0])

    def _kind_a(self, node: int, loose: bool) -> Hashable:
        return self.a.types[node] if loose else self.left.label[node]

    def _kind_b(self, node: int, loose: bool) -> Hashable:
        return self.b.types[node] if loose else self.right.label[node]

    def _alike(self, i: int, j: int, loose: bool) -> bool:
        return self._kind_a(i, loose) == self._kind_b(j, loose)

    def _free(self, i: int, j: int) -> bool:
        return self.to_b[i] < 0 and self.to_a[j] < 0

    def _match(self, i: int, j: int) -> None:
        if not self._free(i, j):
            return
        self.to_b[i], self.to_a[j] = j, i
        self._new.append((i, j))
        self._all.append((i, j))

    def _groups(self, left: Sequence[Hashable], right: Sequence[Hashable]) -> Iterable[tuple[list[int], list[int]]]:
        """Unmatched nodes of each colour both sides have, in topological order."""
        theirs: dict[Hashable, list[int]] = defaultdict(list)
        for j, key in enumerate(right):
            if self.to_a[j] < 0:
                theirs[key].append(j)
        ours: dict[Hashable, list[int]] = defaultdict(list)
        for i, key in enumerate(left):
            if self.to_b[i] < 0 and key in theirs:
                ours[key].append(i)
        return [(nodes, theirs[key]) for key, nodes in ours.items()]
