"""What every command writes into pipes, terminals, files, and streams that hold ASCII only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from ovgraft.cli.main import cli
from tests.cli.conftest import Outcome
from tests.support import ROOT

COMMANDS: dict[str, tuple[int, str]] = {
    "passes": (0, "passes"),
    "a pass": (0, "passes expose-hidden-states"),
    "a preset": (0, "passes dflash"),
    "inspect": (0, "inspect TARGET"),
    "inspect all": (0, "inspect PAIR --all --layers --ops --weights --states --rt-info --node *MatMul*"),
    "inspect checkpoint": (0, "inspect CHECKPOINT"),
    "diff": (1, "diff TARGET PAIR/target --weights"),
    "doctor": (0, "doctor PAIR"),
    "verify": (0, "verify TARGET --steps 1"),
    "verify two": (0, "verify TARGET PAIR/target --steps 1"),
    "explain": (1, "passes --explain move-fc TARGET"),
    "apply": (0, "apply TARGET -p annotate-hidden-states --dry-run"),
    "build-draft": (0, "build-draft CHECKPOINT -o OUT"),
    "a missing file": (3, "inspect TARGET/nothing"),
    "a bad pass": (2, "apply TARGET -p annotate-hidden-stats --dry-run"),
    "a failed pass": (4, "apply TARGET -p move-fc --dry-run"),
    "usage": (2, "diff TARGET"),
    **{f"{name} --help": (0, f"{name} --help") for name in ("apply", "build-draft", "diff", "doctor", "inspect")},
}
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_SECONDS = re.compile(r" *\d+\.\d\d s")

Runs = Callable[..., Outcome]


@pytest.fixture
def runs(target: Path, grafted: Path, tmp_path: Path) -> Runs:
    """Run one of the commands."""

    def invoke(name: str, *more: str, charset: str = "utf-8", env: dict[str, str] | None = None) -> Outcome:
        code, line = COMMANDS[name]
        places = {"TARGET": target, "PAIR": grafted, "CHECKPOINT": ROOT / "samples" / "dspark", "OUT": tmp_path / "out"}
        words = [re.sub("TARGET|PAIR|CHECKPOINT|OUT", lambda found: str(places[found[0]]), w) for w in line.split()]
        words += ["--force"] if name == "build-draft" else []
        given = {"NO_COLOR": None, "FORCE_COLOR": None, "COLUMNS": "60", "TERM": "xterm", **(env or {})}
        result = CliRunner(charset=charset, env=given).invoke(cli, [*words, *more])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == code, result.stderr
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return invoke


def text(outcome: Outcome) -> list[str]:
    """The words, without colour, durations and what stands at the end of lines."""
    both = _ESCAPE.sub("", outcome.out + outcome.err)
    return [" ".join(_SECONDS.sub(" # s", line).split()) for line in both.splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_in_pipes_color_ascii_and_on_a_terminal(
    runs: Runs, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = runs(name)
    assert not re.search("[\x1b…]", piped.out + piped.err)
    narrow = runs(name, charset="ascii")
    assert (narrow.out + narrow.err).isascii()
    assert "\\u2" not in narrow.out + narrow.err
    assert len(text(narrow)) == len(text(piped))
    if "help" in name:  # click's own, never coloured
        return
    colored = runs(name, env={"FORCE_COLOR": "1"})
    assert _ESCAPE.search(colored.out + colored.err)
    assert text(colored) == text(piped)
    monkeypatch.setattr("ovgraft.cli.console._is_terminal", lambda stream: True)
    shown = runs(name, env={"NO_COLOR": "1"})
    assert not _ESCAPE.search(shown.out + shown.err)


def test_the_width_of_a_terminal_means_nothing_to_a_pipe(runs: Runs) -> None:
    for name in ("passes", "inspect", "diff", "doctor", "explain"):
        assert text(runs(name)) == text(runs(name, env={"COLUMNS": "300"}))


def test_the_ways_to_ask_for_color(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs("inspect", env={"FORCE_COLOR": "1"}).out == runs("inspect", "--color", "always").out
    assert not _ESCAPE.search(runs("inspect", env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).out)
    assert not _ESCAPE.search(runs("inspect", "--no-color", env={"FORCE_COLOR": "1"}).out)
    monkeypatch.setattr("ovgraft.cli.console._is_terminal", lambda stream: True)
    assert _ESCAPE.search(runs("inspect").out)
    for plain in (runs("inspect", "--no-color"), runs("inspect", env={"TERM": "dumb"})):
        assert not _ESCAPE.search(plain.out)


def test_a_narrow_terminal_shortens_names_in_the_middle(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ovgraft.cli.console._is_terminal", lambda stream: True)
    lines = text(runs("inspect"))
    assert any(re.search(r"__module\S*…\S*/Add_1 #\d+$", line) for line in lines)
    assert "…" not in "".join(text(runs("inspect", env={"COLUMNS": "200"})))


@pytest.mark.parametrize("form", ["html", "svg", "dot", "json"])
def test_pages_and_drawings_are_utf_8_whatever_the_stream(target: Path, form: str) -> None:
    args = ["inspect", str(target), "--format", form]
    here, there = (CliRunner(charset=charset).invoke(cli, args) for charset in ("utf-8", "ascii"))
    assert (here.exit_code, there.exit_code) == (0, 0)
    assert there.stdout_bytes == here.stdout_bytes
    assert there.stdout_bytes.decode("utf-8").isascii() is (form == "json")


def test_the_c_locale() -> None:
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    pair = ROOT / "samples" / "pair" / "target"
    command = [sys.executable, "-m", "ovgraft", "inspect", str(pair)]
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    assert done.stdout.isascii()
    assert b" x ScaledDotProductAttention" in done.stdout
    assert done.stderr == b""
