"""Boxes, lines and labels as SVG elements, and the colours of both themes."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from ovgraft.inspection.boxes import Box
from ovgraft.inspection.layout import printable, shortened

WIDTH = 300  # of a box
LINE = 16
PAD = 10
_LONGEST = 46  # characters that fit into a box

Point = tuple[float, float]

STYLE = """
.graft { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; }
.graft text { fill: #111827; } .graft .dim { fill: #4b5563; font-size: 11px; } .graft .title { font-weight: 600; }
.graft .frame { fill: #f8fafc; stroke: #cbd5e1; } .graft .box { stroke: #64748b; stroke-width: 1; }
.graft .attention { fill: #dbeafe; } .graft .sliding { fill: #ccfbf1; } .graft .recurrent { fill: #ede9fe; }
.graft .table { fill: #e5e7eb; } .graft .fc { fill: #fde68a; } .graft .head { fill: #fce7f3; }
.graft .other { fill: #ffffff; }
.graft .flow, .graft .tap, .graft .shared { fill: none; stroke: #64748b; stroke-width: 1.5; }
.graft .tap { stroke: #b45309; stroke-width: 2; } .graft .asked { stroke-dasharray: 7 4; }
.graft .shared { stroke-dasharray: 3 4; } .graft .share, .graft .arrow { fill: #64748b; }
.graft .dot, .graft .tap-arrow { fill: #b45309; } .graft .taptext { fill: #92400e; font-size: 11px; }
.graft .bad { fill: #b91c1c; font-size: 11px; }
@media (prefers-color-scheme: dark) {
  .graft text { fill: #f1f5f9; } .graft .dim { fill: #b6c2d1; } .graft .frame { fill: #111827; stroke: #475569; }
  .graft .box { stroke: #94a3b8; } .graft .attention { fill: #1e3a6e; } .graft .sliding { fill: #134e4a; }
  .graft .recurrent { fill: #3f2d78; } .graft .table { fill: #374151; } .graft .fc { fill: #78450b; }
  .graft .head { fill: #701a4b; } .graft .other { fill: #1f2937; }
  .graft .flow, .graft .shared { stroke: #94a3b8; } .graft .tap { stroke: #fbbf24; }
  .graft .share, .graft .arrow { fill: #94a3b8; } .graft .dot, .graft .tap-arrow { fill: #fbbf24; }
  .graft .taptext { fill: #fcd34d; } .graft .bad { fill: #fca5a5; }
}
"""


class Canvas:
    """An SVG document that grows.

    Args:
        width: Of the picture.
        height: Of the picture.
        title: What it shows, for readers who hear it.
        prefix: Of ids, which must differ between pictures of one page.
    """

    def __init__(self, width: float, height: float, title: str, prefix: str) -> None:
        self._prefix = prefix
        self._root = Xml.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {_n(width)} {_n(height)}",
                "width": _n(width),
                "height": _n(height),
                "role": "img",
                "class": "graft",
            },
        )
        Xml.SubElement(self._root, "title").text = printable(title)
        Xml.SubElement(self._root, "style").text = STYLE
        definitions = Xml.SubElement(self._root, "defs")
        for name in ("arrow", "tap-arrow"):
            marker = Xml.SubElement(
                definitions,
                "marker",
                {
                    **{"id": f"{prefix}-{name}", "viewBox": "0 0 8 8", "refX": "7", "refY": "4", "orient": "auto"},
                    **{"markerWidth": "8", "markerHeight": "8", "markerUnits": "userSpaceOnUse"},
                },
            )
            Xml.SubElement(marker, "path", {"d": "M0 0L8 4L0 8z", "class": name})

    def text(self) -> str:
        """The document."""
        return Xml.tostring(self._root, encoding="unicode") + "\n"

    def rectangle(self, x: float, y: float, width: float, height: float, kind: str, corner: int) -> None:
        """A rectangle with round corners."""
        place = {"x": _n(x), "y": _n(y), "width": _n(width), "height": _n(height), "rx": str(corner)}
        Xml.SubElement(self._root, "rect", {"class": kind, **place})

    def line(self, points: Sequence[Point], kind: str, end: str = "") -> None:
        """A line through some points; ``end`` is ``arrow``, ``tap-arrow`` or nothing."""
        attributes = {"class": kind, "points": " ".join(f"{_n(x)},{_n(y)}" for x, y in points)}
        if end:
            attributes["marker-end"] = f"url(#{self._prefix}-{end})"
        Xml.SubElement(self._root, "polyline", attributes)

    def dot(self, x: float, y: float) -> None:
        """A place where something is read."""
        Xml.SubElement(self._root, "circle", {"class": "dot", "cx": _n(x), "cy": _n(y), "r": "3.5"})

    def label(self, x: float, y: float, text: str, kind: str, width: float = WIDTH) -> None:
        """Untrusted text, its middle left out where it is too long; the whole of it as a tooltip."""
        whole = printable(text)
        short = shortened(whole, int(width * _LONGEST / (WIDTH - 2 * PAD)))
        place = {"x": _n(x), "y": _n(y), "unicode-bidi": "isolate"}
        element = Xml.SubElement(self._root, "text", {"class": kind, **place})
        element.text = short
        if short != whole:
            Xml.SubElement(element, "title").text = whole

    def box(self, box: Box, x: float, y: float, width: float, total: int) -> None:
        """A box with its texts, and a bar for its share of ``total`` bytes."""
        height = box_height(box)
        self.rectangle(x, y, width, height, f"box {box.style}", 6)
        self.label(x + PAD, y + PAD + 10, box.title, "title", width - 2 * PAD)
        for at, line in enumerate(box.lines):
            self.label(x + PAD, y + PAD + 10 + LINE * (at + 1), line, "dim", width - 2 * PAD)
        if box.bytes and total:
            share = min(1.0, box.bytes / total)
            self.rectangle(x + 1, y + height - 4, max(2.0, (width - 2) * share), 3, "share", 1)


def box_height(box: Box) -> int:
    """How high a box is."""
    return 2 * PAD + LINE * (1 + len(box.lines)) - 2


def _n(value: float) -> str:
    return f"{value:g}"
