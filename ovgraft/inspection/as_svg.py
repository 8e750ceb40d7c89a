"""The graft picture as SVG, for documents and issues; follows the reader's light or dark theme.

Target and draft stand side by side, or one below the other where the page is narrow.
"""

from __future__ import annotations

from dataclasses import dataclass

from ovgraft.inspection.boxes import Box
from ovgraft.inspection.picture import Picture, Strip
from ovgraft.inspection.svg_shapes import LINE, WIDTH, Canvas, Point, box_height

_GAP = 16  # between boxes
_MARGIN = 14
_HEAD = 44  # name and sizes of a strip
_LANE = 232  # between the strips: bus and FC
_BUS = 30  # from a box to the bus
_RAIL = 8  # from a box to the line of what enters from the side
_NARROW_LANE = 34
_NARROW_LEFT = 36  # room for the lines of shared weights
_ABOVE_JOINT = _GAP + 2 * LINE + 4


@dataclass(frozen=True)
class _Placed:
    """A strip and where its boxes are.

    Attributes:
        strip: The strip.
        x: Left side of the boxes.
        tops: Of each box.
        bottoms: Of each box.
    """

    strip: Strip
    x: float
    tops: tuple[float, ...]
    bottoms: tuple[float, ...]

    @property
    def right(self) -> float:
        """Right side of the boxes."""
        return self.x + WIDTH

    def middle(self, box: int) -> float:
        """Height of the middle of a box."""
        return (self.tops[box] + self.bottoms[box]) / 2

    def receivers(self) -> tuple[int, ...]:
        """The boxes that take the target's states, of a draft."""
        return self.strip.entries if self.strip.side is None else (self.strip.side,)


def picture_svg(picture: Picture, *, stacked: bool = False) -> str:
    """The picture as one SVG document.

    Args:
        picture: What to draw.
        stacked: The draft below the target, for narrow pages.
    """
    return _stacked(picture) if stacked else _beside(picture)


def _placed(strip: Strip, x: float, y: float) -> _Placed:
    """A strip whose frame begins at ``y``."""
    tops, bottoms = [], []
    top = y + _HEAD
    for box in strip.boxes:
        tops.append(top)
        bottoms.append(top + box_height(box))
        top = bottoms[-1] + _GAP
    return _Placed(strip, x, tuple(tops), tuple(bottoms))


def _draw(canvas: Canvas, placed: _Placed, inner: float, extra: float = 0) -> None:
    """Draw a strip in a frame of some inner width, ``extra`` higher than its boxes need."""
    strip, x = placed.strip, placed.x
    top = placed.tops[0] - _HEAD
    height = placed.bottoms[-1] + _MARGIN + extra - top
    canvas.rectangle(x - _MARGIN, top, inner + 2 * _MARGIN, height, "frame", 10)
    canvas.label(x, top + 20, strip.name, "title", inner)
    canvas.label(x, top + 20 + LINE, strip.about, "dim", inner)
    for at, box in enumerate(strip.boxes):
        canvas.box(box, x, placed.tops[at], WIDTH, strip.bytes)
        if at + 1 < len(strip.boxes) and at != strip.side:
            bottom = placed.bottoms[at]
            canvas.line([(x + WIDTH / 2, bottom), (x + WIDTH / 2, bottom + _GAP)], "flow", "arrow")
    if strip.side is not None:
        start, rail = placed.middle(strip.side), placed.right + _RAIL
        for entry in strip.entries:
            end = placed.middle(entry)
            canvas.line([(placed.right, start), (rail, start), (rail, end), (placed.right, end)], "flow", "arrow")


def _canvas(picture: Picture, width: float, height: float, prefix: str) -> Canvas:
    names = " and ".join(strip.name for strip in (picture.target, picture.draft) if strip is not None)
    canvas = Canvas(width, height + LINE * len(picture.notes), names, prefix)
    for at, note in enumerate(picture.notes):
        canvas.label(2 * _MARGIN, height + LINE * (at + 1) - _MARGIN, note, "bad", width - 2 * _MARGIN)
    return canvas


def _joint(picture: Picture) -> Box:
    """What the captured states go through on their way out of the target."""
    return picture.fc or Box("other", "last_hidden_state", () if picture.exposed else ("not there yet",))


def _read_words(picture: Picture) -> tuple[str, str]:
    return "read:" if picture.exposed else "wanted, not exposed yet:", picture.tap_text


def _kind(picture: Picture) -> str:
    return "tap" if picture.exposed else "tap asked"


def _source(target: _Placed, box: Box) -> int:
    """The box of the target whose weights a box of the draft reads."""
    return 0 if box.from_target == "embedding" else len(target.strip.boxes) - 1


# side by side


def _beside(picture: Picture) -> str:
    left = 2 * _MARGIN
    lane = _LANE if picture.taps else 40
    right = left + WIDTH + lane + 2 * _MARGIN + _GAP if picture.target is not None else left
    target = _placed(picture.target, left, _MARGIN) if picture.target is not None else None
    draft = _placed(picture.draft, right, _MARGIN) if picture.draft is not None else None
    strips = [placed for placed in (target, draft) if placed is not None]
    height = max(placed.bottoms[-1] for placed in strips) + 2 * _MARGIN
    width = (right if draft is not None else left + (lane if picture.taps else 0)) + WIDTH + 2 * _MARGIN
    canvas = _canvas(picture, width, height, "graft")
    if target is not None:
        _draw(canvas, target, WIDTH + (_LANE if picture.taps else 0))
    if draft is not None:
        _draw(canvas, draft, WIDTH)
    if target is not None and picture.taps:
        _taps_beside(canvas, picture, target, draft, right)
    if target is not None and draft is not None:
        bend = right - _MARGIN - _GAP / 2
        for at, box in enumerate(draft.strip.boxes):
            if box.from_target:
                source = _source(target, box)
                first = source == 0
                start = target.tops[0] + 16 if first else target.bottoms[source] - 16
                end = draft.tops[at] + 16 if first else draft.bottoms[at] - 16
                canvas.line([(target.right, start), (bend, start), (bend, end), (right, end)], "shared", "arrow")
                canvas.label(target.right + 44, start - 5, "same weights", "dim")
    return canvas.text()


def _taps_beside(canvas: Canvas, picture: Picture, target: _Placed, draft: _Placed | None, right: float) -> None:
    """From the layers that are read along a bus, through the FC, into the draft."""
    kind, box = _kind(picture), _joint(picture)
    x, fc_x = target.right, target.right + 64
    heights = [target.bottoms[max(tap, 0)] - 8 for tap in picture.taps]
    receivers = draft.receivers() if draft is not None else ()
    middle = sum(heights) / len(heights)
    if draft is not None and receivers:
        middle = draft.tops[receivers[0]] + 22
        if receivers[0] == 0:
            middle = max(middle, _MARGIN + _HEAD + box_height(box) / 2 + 2 * LINE)
    _bus(canvas, heights, middle, x, kind)
    width = _LANE - (fc_x - x)
    half = box_height(box) / 2
    canvas.line([(x + _BUS, middle), (fc_x, middle)], kind, "tap-arrow")
    canvas.box(box, fc_x, middle - half, width, 0)
    for at, words in enumerate(reversed(_read_words(picture))):
        canvas.label(fc_x, middle - half - 10 - LINE * at, words, "taptext", width)
    for receiver in receivers:
        assert draft is not None
        end = min(max(middle, draft.tops[receiver] + 8), draft.bottoms[receiver] - 8)
        bend = right - _MARGIN - _GAP / 2
        canvas.line([(fc_x + width, middle), (bend, middle), (bend, end), (right, end)], kind, "tap-arrow")


def _bus(canvas: Canvas, heights: list[float], to: float, x: float, kind: str) -> None:
    """The line along the layers that are read, as far as ``to``."""
    for y in heights:
        canvas.line([(x, y), (x + _BUS, y)], kind)
        canvas.dot(x, y)
    canvas.line([(x + _BUS, min(*heights, to)), (x + _BUS, max(*heights, to))], kind)


# one below the other


def _stacked(picture: Picture) -> str:
    tables = picture.draft.boxes if picture.target is not None and picture.draft is not None else ()
    left = _NARROW_LEFT if any(box.from_target for box in tables) else 2 * _MARGIN
    inner = WIDTH + (_NARROW_LANE if picture.taps else 0)
    extra = box_height(_joint(picture)) + _ABOVE_JOINT if picture.taps else 0
    target = _placed(picture.target, left, _MARGIN) if picture.target is not None else None
    below = target.bottoms[-1] + _MARGIN + extra + _GAP if target is not None else _MARGIN
    draft = _placed(picture.draft, left, below) if picture.draft is not None else None
    last = draft if draft is not None else target
    assert last is not None
    height = last.bottoms[-1] + 2 * _MARGIN + (extra if draft is None else 0)
    canvas = _canvas(picture, left + inner + 2 * _MARGIN, height, "stacked")
    if target is not None:
        _draw(canvas, target, inner, extra)
    if draft is not None:
        _draw(canvas, draft, inner)
    if target is not None and picture.taps:
        _taps_stacked(canvas, picture, target, draft)
    if target is not None and draft is not None:
        for at, each in enumerate(draft.strip.boxes):
            if each.from_target:
                source = _source(target, each)
                rail = left - _MARGIN / 2 if source else left - _MARGIN - _RAIL
                start, end = target.middle(source), draft.middle(at)
                canvas.line([(left, start), (rail, start), (rail, end), (left, end)], "shared", "arrow")
    return canvas.text()


def _taps_stacked(canvas: Canvas, picture: Picture, target: _Placed, draft: _Placed | None) -> None:
    """From the layers that are read down a bus on the right, through the FC below them, into the draft."""
    kind, box = _kind(picture), _joint(picture)
    bus = target.right + _BUS
    top = target.bottoms[-1] + _ABOVE_JOINT
    heights = [target.bottoms[max(tap, 0)] - 8 for tap in picture.taps]
    middle = top + box_height(box) / 2
    _bus(canvas, heights, middle - 8, target.right, kind)
    canvas.line([(bus, middle - 8), (target.right, middle - 8)], kind, "tap-arrow")
    canvas.box(box, target.x, top, WIDTH, 0)
    for at, words in enumerate(reversed(_read_words(picture))):
        canvas.label(target.x, top - 10 - LINE * at, words, "taptext", WIDTH)
    for receiver in draft.receivers() if draft is not None else ():
        assert draft is not None
        end = draft.middle(receiver) - (10 if receiver == draft.strip.side else 0)  # clear of what leaves it
        way: list[Point] = [(target.right, middle + 8), (bus, middle + 8), (bus, end), (draft.right, end)]
        canvas.line(way, kind, "tap-arrow")
