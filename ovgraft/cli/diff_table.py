"""A comparison of structures for people: what happened in words, then the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ovgraft.inspection.layout import Block, Cell, Line, Style, Symbols, Table

if TYPE_CHECKING:
    from ovgraft.checks.diff import Difference, GraftDiff, ModelDiff, WeightDifference

_SIGNS: dict[str, tuple[str, Style]] = {
    "removed": ("-", "bad"),
    "added": ("+", "good"),
    "changed": ("~", "warn"),
    "rewired": ("~", "warn"),
}
_MOST_NODES = 40


def diff_lines(found: GraftDiff, symbols: Symbols, *, stat: bool) -> list[Block]:
    """One part a model, then the verdict."""
    blocks: list[Block] = []
    for model in found.models:
        blocks += [*_model(model, symbols, stat), Line()]
    for side, names in (("A", found.only_a), ("B", found.only_b)):
        blocks += [Line((Cell(name, "title"), f"  only in {side}")) for name in names]
    if found.only_a or found.only_b:
        blocks.append(Line())
    return [*blocks, _verdict(found)]


def _model(model: ModelDiff, symbols: Symbols, stat: bool) -> Iterator[Block]:
    said = ", ".join(f"{count:,} {name}" for name, count in model.summary.items() if count or name == "same")
    yield Line((Cell(model.name, "title"), "  ", Cell(said, "dim")))
    if model.equal:
        if model.weights is not None:
            yield Line((Cell(f"the same, {model.compared_bytes:,} bytes of weights included", "good"),), indent=2)
        else:
            yield Line((Cell("the same structure", "good"),), indent=2)
        return
    for text in model.words:
        yield Line((text,), indent=2)
    if stat:
        return
    rows = [_row(node, symbols) for node in model.nodes[:_MOST_NODES]]
    if rows:
        yield Line()
        yield Table(rows)
    if len(model.nodes) > _MOST_NODES:
        yield Line((Cell(f"and {len(model.nodes) - _MOST_NODES:,} more (--json has them)", "dim"),), indent=2)
    weights = model.weights or ()
    if weights:
        yield Line()
        yield Table([_weight(each, symbols) for each in weights[:_MOST_NODES]])
    if len(weights) > _MOST_NODES:
        yield Line((Cell(f"and {len(weights) - _MOST_NODES:,} more (--json has them)", "dim"),), indent=2)


def _row(node: Difference, symbols: Symbols) -> tuple[Cell | str, ...]:
    sign, style = _SIGNS[node.kind]
    ref = node.b or node.a
    assert ref is not None
    name = ref.name
    if node.a is not None and node.b is not None and node.a.name != node.b.name:
        name = f"{node.a.name} {symbols.arrow} {node.b.name}"
    return (Cell(sign, style), ref.type, Cell(name, "name"), Cell(f"#{ref.index}", "dim"), Cell(node.text, "prose"))


def _weight(weight: WeightDifference, symbols: Symbols) -> tuple[Cell | str, ...]:
    digests = f"{weight.digest_a[:12]} {symbols.arrow} {weight.digest_b[:12]}"
    return (Cell("~", "warn"), "Constant", Cell(weight.b.name, "name"), Cell(digests, "dim"))


def _verdict(found: GraftDiff) -> Line:
    if found.equal:
        return Line((Cell("the same", "good"),))
    return Line((Cell("different", "bad"), Cell(f"  ({len(found.models)} compared)", "dim")))
