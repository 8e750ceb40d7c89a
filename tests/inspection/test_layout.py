from __future__ import annotations

import pytest

from ovgraft.inspection.layout import Cell, Line, Table, plain, printable, shortened

HOSTILE = [
    "[bold]x[/bold]",
    "[/enc]",
    'a"b',
    "line\nbreak",
    "\x1b[31mred",
    "\u202eltr",
    "tab\tbell\a",
    "zero\u200bwidth",
]


@pytest.mark.parametrize("text", ["MatMul_12", "слой/умножение", "层", "→", "[bold]x[/bold]"])
def test_printable_text_stays_what_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202eabc", "\\u202eabc"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("\x85\u2028", "\\x85\\u2028"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_control_and_direction_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_takes_one_line_of_plain_text(name: str) -> None:
    text = plain([Table([("in", Cell(name, "name"), "f32"), ("in", "b", "f32")]), Line((name,))])
    assert len(text.splitlines()) == 3
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_columns_align_and_no_line_ends_in_spaces() -> None:
    text = plain([Table([("a", "1", "x"), ("long", "22", "")], header=("name", "n", ""), align="<>")])
    assert text == "  name   n\n  a      1  x\n  long  22\n"


def test_ragged_rows_and_empty_tables() -> None:
    assert plain([Table([("a",), ("b", "c")])]) == "  a\n  b  c\n"
    assert plain([Table([])]) == ""


def test_long_names_are_whole_in_plain_text() -> None:
    name = "x" * 500
    assert name in plain([Table([(Cell(name, "name"), "tail")])])


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9])
def test_shortening_keeps_both_ends(width: int) -> None:
    short = shortened("abcdefghij", width)
    assert len(short) == width
    assert short[-1] in ("j", "…")
    assert shortened("abcdefghij", 10) == "abcdefghij"


def test_shortening_favours_the_tail() -> None:
    assert shortened("layers.0/self_attn/q_proj", 12) == "layer…q_proj"
