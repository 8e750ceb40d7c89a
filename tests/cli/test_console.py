from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from ovgraft.cli.console import Console
from ovgraft.cli.failures import describe
from ovgraft.cli.terminal import draw, rich_console
from ovgraft.errors import ModelFileError, PreconditionError, Reason, SpecError
from ovgraft.inspection.layout import ASCII, UNICODE, Cell, Line, Table, plain
from ovgraft.noderef import NodeRef

ROW = Table([(Cell("layers.0/self_attn/q_proj/MatMul_with_a_long_name_that_goes_on", "name"), "[?,?,64]", "f32")])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(width: int, *blocks: Line | Table, colored: bool = False) -> str:
    console = rich_console(io.StringIO(), colored=colored, terminal=True)
    console.width = width
    return draw(console, blocks, UNICODE)


def test_a_narrow_terminal_shortens_names_in_the_middle_and_nothing_else() -> None:
    text = drawn(50, ROW)
    assert "…" in text
    assert "goes_on" in text
    assert "layers.0" in text
    assert "[?,?,64]  f32" in text
    assert len(text.splitlines()) == 1
    assert max(map(len, text.splitlines())) <= 50


def test_a_table_that_cannot_shrink_keeps_its_last_column() -> None:
    row = Table([("target and draft", "target logits", "3.2e-01", "step 2 [0,0,1081]", Cell("FAIL", "bad"))])
    assert drawn(40, row) == "  target and draft  target logits  3.2e-01  step 2 [0,0,1081]  FAIL\n"


@pytest.mark.parametrize("empty", ["", Cell("", "prose"), Cell("", "name")])
def test_an_empty_column_costs_no_name_its_middle(empty: Cell | str) -> None:
    name = "layers.0/self_attn/q_proj/MatMul_with_a_long_name"
    assert name in drawn(200, Table([(Cell(name, "name"), "f32", empty), (Cell("short", "name"), "i64", empty)]))


def test_prose_is_wrapped_between_words() -> None:
    text = drawn(40, Table([(Cell("name", "title"), Cell("a sentence that is longer than the terminal is", "prose"))]))
    assert text.splitlines() == ["  name  a sentence that is longer than", "        the terminal is"]


def test_a_wide_terminal_shows_names_whole() -> None:
    assert "…" not in drawn(200, ROW)


@pytest.mark.parametrize("name", ["[bold]x[/bold]", "[/enc]", "[red]", ":smile:", "a\x1b[2Jb", "x\ny"])
def test_names_are_no_markup(name: str) -> None:
    text = drawn(80, Table([(Cell(name, "name"), "f32")]), Line((name,)))
    assert "\x1b" not in text
    assert len(text.splitlines()) == 2
    if "\x1b" not in name and "\n" not in name:
        assert text.count(name) == 2


def test_color_is_escapes_around_the_same_words() -> None:
    colored = drawn(80, Line((Cell("FAIL", "bad"), " and ", Cell("ok", "good"))), colored=True)
    assert "\x1b[" in colored
    assert "FAIL" in colored


@pytest.mark.parametrize(
    ("color", "environment", "terminal", "expected"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_who_decides_about_color(
    monkeypatch: pytest.MonkeyPatch, color: str, environment: dict[str, str], terminal: bool, expected: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    console = Console()
    console.color = color  # type: ignore[assignment]
    console.data(Line((Cell("ok", "good"),)))
    assert ("\x1b[" in stream.getvalue()) is expected
    assert "ok" in stream.getvalue()


def test_color_without_a_terminal_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    console = Console()
    console.color = "always"
    console.data(Table([(Cell("x" * 400, "name"), "f32")]))
    assert "x" * 400 in stream.getvalue()


def test_a_stream_without_unicode_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(bytes_out, encoding="ascii"))
    console = Console()
    assert console.symbols == ASCII
    console.data(Line((f"955 {console.symbols.arrow} 957 слой",)))
    assert bytes_out.getvalue() == b"955 -> 957 \\u0441\\u043b\\u043e\\u0439\n"


def test_quiet_keeps_data_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.verbosity = -1
    console.say(Line(("wrote x",)))
    console.data(Line(("data",)))
    console.error(ModelFileError("no such file: x"))
    out, err = capsys.readouterr()
    assert out == "data\n"
    assert err == "error: no such file: x\n"


def test_an_error_shows_sentence_reasons_and_hint() -> None:
    error = PreconditionError(
        "no lm_head",
        file=Path("models/x.xml"),
        hint="look at it with ovgraft inspect",
        reasons=(Reason("no-logits", "no output logits", (NodeRef("[bold]a\nb", "Result", 7),)),),
    )
    error.ran_before = ("annotate-hidden-states",)
    assert plain(describe(error, 0)).splitlines() == [
        "error: no lm_head [models/x.xml]",
        "  - no output logits [Result '[bold]a\\nb' (#7)]",
        "  ran before it: annotate-hidden-states",
        "  hint: look at it with ovgraft inspect",
    ]


def test_many_reasons_and_long_names_are_bounded() -> None:
    reasons = tuple(Reason("missing", f"tensor {number} is missing") for number in range(20))
    error = ModelFileError("n" * 5000, hint="h" * 5000, reasons=reasons)
    lines = plain(describe(error, 0)).splitlines()
    assert max(map(len, lines)) < 1100
    assert lines[8:10] == ["  - tensor 7 is missing", "  and 12 more (-v prints them)"]
    assert "tensor 19 is missing" in plain(describe(error, 1))


def test_causes_and_tracebacks_only_when_asked_for() -> None:
    try:
        try:
            raise RuntimeError("first line\nsecond line")
        except RuntimeError as cause:
            raise ModelFileError("cannot read") from cause
    except ModelFileError as error:
        quiet, causes, full = (plain(describe(error, verbosity)) for verbosity in (0, 1, 2))
    assert quiet == "error: cannot read\n"
    assert causes == "error: cannot read\n  caused by: first line\n  second line\n"
    assert "Traceback" in full


def test_the_caret_stands_below_its_word_even_behind_escapes() -> None:
    text = "a\x07b,bad{x=1}"
    lines = plain(describe(SpecError("unknown", text=text, span=(4, 7)), 0)).splitlines()
    assert lines[1] == "    a\\x07b,bad{x=1}"
    assert lines[2] == "           ^~~"
    assert lines[1][lines[2].index("^") :].startswith("bad")


def test_json_mode_puts_one_document_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    console = Console()
    console.json = True
    console.error(ModelFileError("no such file: x", hint="h"))
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "schema": 1,
        "error": {"type": "ModelFileError", "message": "no such file: x", "hint": "h"},
    }
    assert err.startswith("error: no such file: x")


def test_json_is_ascii_so_that_names_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Console().document({"name": "\u202e\x9b31m"})
    assert capsys.readouterr().out.isascii()
