"""The graft picture as SVG, for documents and issues; follows the reader's light or dark theme."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from ovgraft.inspection.layout import printable, shortened
from ovgraft.inspection.picture import Box, Picture, Strip

_WIDTH = 300  # of a box
_LINE = 16
_PAD = 10
_GAP = 16
_MARGIN = 14
_HEAD = 44  # name and sizes of a strip
_LANE = 232  # between the strips: bus and FC
_LONGEST = 46  # characters that fit into a box

_STYLE = """
.graft { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; }
.graft text { fill: #111827; } .graft .dim { fill: #4b5563; font-size: 11px; } .graft .title { font-weight: 600; }
.graft .frame { fill: #f8fafc; stroke: #cbd5e1; } .graft .box { stroke: #64748b; stroke-width: 1; }
.graft .attention { fill: #dbeafe; } .graft .sliding { fill: #ccfbf1; } .graft .recurrent { fill: #ede9fe; }
.graft .table { fill: #e5e7eb; } .graft .fc { fill: #fde68a; } .graft .other { fill: #ffffff; }
.graft .flow, .graft .tap, .graft .shared { fill: none; stroke: #64748b; stroke-width: 1.5; }
.graft .tap { stroke: #b45309; stroke-width: 2; } .graft .asked { stroke-dasharray: 7 4; }
.graft .shared { stroke-dasharray: 3 4; } .graft .share, .graft .arrow { fill: #64748b; }
.graft .dot, .graft .tap-arrow { fill: #b45309; } .graft .taptext { fill: #92400e; font-size: 11px; }
.graft .bad { fill: #b91c1c; font-size: 11px; }
@media (prefers-color-scheme: dark) {
  .graft text { fill: #f1f5f9; } .graft .dim { fill: #b6c2d1; } .graft .frame { fill: #111827; stroke: #475569; }
  .graft .box { stroke: #94a3b8; } .graft .attention { fill: #1e3a6e; } .graft .sliding { fill: #134e4a; }
  .graft .recurrent { fill: #3f2d78; } .graft .table { fill: #374151; } .graft .fc { fill: #78450b; }
  .graft .other { fill: #1f2937; } .graft .flow, .graft .shared { stroke: #94a3b8; } .graft .tap { stroke: #fbbf24; }
  .graft .share, .graft .arrow { fill: #94a3b8; } .graft .dot, .graft .tap-arrow { fill: #fbbf24; }
  .graft .taptext { fill: #fcd34d; } .graft .bad { fill: #fca5a5; }
}
"""


def picture_svg(picture: Picture) -> str:
    """The picture as one SVG document."""
    both = picture.target is not None and picture.draft is not None
    lane = _LANE if picture.taps else 40
    left = _MARGIN * 2
    right = left + _WIDTH + lane + _MARGIN * 2 + _GAP if picture.target is not None else left
    heights = [_height(strip) for strip in (picture.target, picture.draft) if strip is not None]
    height = max(heights) + _HEAD + 3 * _MARGIN
    width = right + _WIDTH + 2 * _MARGIN if both else left + _WIDTH + 2 * _MARGIN + (lane if picture.taps else 0)
    height += _LINE * len(picture.notes)
    root = Xml.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width} {height}",
            "width": str(width),
            "height": str(height),
            "role": "img",
            "class": "graft",
        },
    )
    names = " and ".join(strip.name for strip in (picture.target, picture.draft) if strip is not None)
    Xml.SubElement(root, "title").text = printable(names)
    Xml.SubElement(root, "style").text = _STYLE
    _arrowheads(root)
    target_at: list[tuple[float, float]] = []
    draft_at: list[tuple[float, float]] = []
    fc_x = left + _WIDTH + 64
    if picture.target is not None:
        inner = (_LANE if picture.taps else 0) + _WIDTH
        target_at = _strip(root, picture.target, left, inner)
    if picture.draft is not None:
        draft_at = _strip(root, picture.draft, right, _WIDTH)
    if picture.taps:
        _taps(root, picture, target_at, draft_at, left + _WIDTH, fc_x, right)
    if both and picture.target is not None and picture.draft is not None:
        _shared(root, picture.draft, target_at, draft_at, left + _WIDTH, right)
    for at, note in enumerate(picture.notes):
        _label(root, left, height - _MARGIN - _LINE * at, note, "bad")
    return Xml.tostring(root, encoding="unicode") + "\n"


def _height(strip: Strip) -> int:
    return sum(_box_height(box) + _GAP for box in strip.boxes) + _MARGIN


def _box_height(box: Box) -> int:
    return 2 * _PAD + _LINE * (1 + len(box.lines)) - 2


def _strip(root: Xml.Element, strip: Strip, x: int, width: int) -> list[tuple[float, float]]:
    """Draw a strip.

    Returns:
        Top and bottom of each box.
    """
    height = _height(strip) + _HEAD
    _rectangle(root, x - _MARGIN, _MARGIN, width + 2 * _MARGIN, height, "frame", 10)
    _label(root, x, _MARGIN + 20, strip.name, "title", width)
    _label(root, x, _MARGIN + 20 + _LINE, strip.about, "dim", width)
    y = float(_MARGIN + _HEAD)
    places = []
    for at, box in enumerate(strip.boxes):
        bottom = _box(root, box, x, y, _WIDTH, strip.bytes)
        places.append((y, bottom))
        if at + 1 < len(strip.boxes) and box.style != "fc":
            _line(root, [(x + _WIDTH / 2, bottom), (x + _WIDTH / 2, bottom + _GAP)], "flow", "arrow")
        y = bottom + _GAP
    if strip.boxes[0].style == "fc" and len(places) > 2:  # joins the embedding in the layers
        start, end = (sum(places[at]) / 2 for at in (0, 2))
        side = x + _WIDTH
        _line(root, [(side, start), (side + 8, start), (side + 8, end), (side, end)], "flow", "arrow")
    return places


def _box(root: Xml.Element, box: Box, x: float, y: float, width: float, total: int) -> float:
    height = _box_height(box)
    _rectangle(root, x, y, width, height, f"box {box.style}", 6)
    _label(root, x + _PAD, y + _PAD + 10, box.title, "title", width - 2 * _PAD)
    for at, line in enumerate(box.lines):
        _label(root, x + _PAD, y + _PAD + 10 + _LINE * (at + 1), line, "dim", width - 2 * _PAD)
    if box.bytes and total:
        share = min(1.0, box.bytes / total)
        _rectangle(root, x + 1, y + height - 4, max(2.0, (width - 2) * share), 3, "share", 1)
    return y + height


def _taps(
    root: Xml.Element,
    picture: Picture,
    target: list[tuple[float, float]],
    draft: list[tuple[float, float]],
    x: float,
    fc_x: float,
    right: float,
) -> None:
    """From the layers that are read along a bus, through the FC, into the draft."""
    kind = "tap" if picture.exposed else "tap asked"
    bus = x + 30
    heights = [target[max(tap, 0)][1] - 8 for tap in picture.taps]
    box = picture.fc or Box("other", "last_hidden_state", ("not there yet",) if not picture.exposed else ())
    middle = draft[picture.entry][0] + 22 if draft else sum(heights) / len(heights)
    if draft and picture.entry == 0:
        middle = max(middle, _MARGIN + _HEAD + _box_height(box) / 2 + 2 * _LINE)
    for y in heights:
        _line(root, [(x, y), (bus, y)], kind)
        Xml.SubElement(root, "circle", {"class": "dot", "cx": _n(x), "cy": _n(y), "r": "3.5"})
    _line(root, [(bus, min(*heights, middle)), (bus, max(*heights, middle))], kind)
    width = _LANE - (fc_x - x)
    half = _box_height(box) / 2
    _line(root, [(bus, middle), (fc_x, middle)], kind, "tap-arrow")
    _box(root, box, fc_x, middle - half, width, 0)
    words = "read:" if picture.exposed else "wanted, not exposed yet:"
    _label(root, fc_x, middle - half - 10 - _LINE, words, "taptext", width)
    _label(root, fc_x, middle - half - 10, picture.tap_text, "taptext", width)
    if draft:
        top, bottom = draft[picture.entry]
        end = min(max(middle, top + 10), bottom - 10)
        bend = right - _MARGIN - _GAP / 2
        _line(root, [(fc_x + width, middle), (bend, middle), (bend, end), (right, end)], kind, "tap-arrow")


def _shared(
    root: Xml.Element,
    draft: Strip,
    target: list[tuple[float, float]],
    places: list[tuple[float, float]],
    x: float,
    right: float,
) -> None:
    """Tables whose weights are the target's."""
    for at, box in enumerate(draft.boxes):
        if not box.from_target:
            continue
        first = at + 1 < len(draft.boxes)
        source = target[0] if first else target[-1]
        start, end = (source[0] + 16, places[at][0] + 16) if first else (source[1] - 16, places[at][1] - 16)
        bend = right - _MARGIN - _GAP / 2
        _line(root, [(x, start), (bend, start), (bend, end), (right, end)], "shared", "arrow")
        _label(root, x + 44, start - 5, "same weights", "dim")


def _arrowheads(root: Xml.Element) -> None:
    definitions = Xml.SubElement(root, "defs")
    for name in ("arrow", "tap-arrow"):
        marker = Xml.SubElement(
            definitions,
            "marker",
            {
                **{"id": f"graft-{name}", "viewBox": "0 0 8 8", "refX": "7", "refY": "4", "orient": "auto"},
                **{"markerWidth": "8", "markerHeight": "8", "markerUnits": "userSpaceOnUse"},
            },
        )
        Xml.SubElement(marker, "path", {"d": "M0 0L8 4L0 8z", "class": name})


def _rectangle(root: Xml.Element, x: float, y: float, width: float, height: float, kind: str, round_: int) -> None:
    place = {"x": _n(x), "y": _n(y), "width": _n(width), "height": _n(height), "rx": str(round_)}
    Xml.SubElement(root, "rect", {"class": kind, **place})


def _line(root: Xml.Element, points: list[tuple[float, float]], kind: str, end: str = "") -> None:
    attributes = {"class": kind, "points": " ".join(f"{_n(x)},{_n(y)}" for x, y in points)}
    if end:
        attributes["marker-end"] = f"url(#graft-{end})"
    Xml.SubElement(root, "polyline", attributes)


def _label(root: Xml.Element, x: float, y: float, text: str, kind: str, width: float = _WIDTH) -> None:
    """Untrusted text, its middle left out where it is too long; the whole of it as a tooltip."""
    whole = printable(text)
    short = shortened(whole, int(width * _LONGEST / (_WIDTH - 2 * _PAD)))
    element = Xml.SubElement(root, "text", {"class": kind, "x": _n(x), "y": _n(y), "unicode-bidi": "isolate"})
    element.text = short
    if short != whole:
        Xml.SubElement(element, "title").text = whole


def _n(value: float) -> str:
    return f"{value:g}"
