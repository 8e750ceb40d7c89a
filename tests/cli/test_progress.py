"""The line that tells what is going on, on a real pseudo-terminal; and interrupts."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ovgraft.cli.console import Console
from ovgraft.cli.progress import StatusLine, line_console
from ovgraft.cli.status import Status
from tests.cli.conftest import Run
from tests.cli.terminals import on_terminal
from tests.support import ROOT

_SLOW = """
import sys, time
from ovgraft.cli.console import Console
console = Console()
console.verbosity = int(sys.argv[1])
with console.status() as status:
    status("reading the model")
    time.sleep(0.7)
    for done in range(3):
        status("pass 1/2 fold", done, 3, "layers")
        time.sleep(0.15)
print("done")
"""
_GROWS = """
import sys, time
from pathlib import Path
from ovgraft.cli import progress
from ovgraft.cli.console import Console
from ovgraft.ir.progress import watching
progress._SHORT_WRITE = 0
file = Path(sys.argv[1])
with Console().status() as status:
    status("write model.bin")
    with watching(file, 4 << 20):
        sys.setswitchinterval(60)  # as good as never giving up Python's lock
        until = time.monotonic() + 2
        with file.open("wb", buffering=0) as out:
            out.write(bytes(1 << 20))
            while time.monotonic() < until:
                pass
"""


def test_what_lasts_has_a_line_and_leaves_none() -> None:
    shown = on_terminal(["-c", _SLOW, "0"])
    assert "reading the model" in shown.text
    assert "pass 1/2 fold: layers" in shown.text
    assert "2 of 3" in shown.text
    assert shown.left == ["done"]
    assert shown.cursor_shown


def test_quiet_pipes_and_dumb_terminals_have_none(tmp_path: Path) -> None:
    assert on_terminal(["-c", _SLOW, "-1"]).raw == "done\r\n"
    assert on_terminal(["-c", _SLOW, "0"], env={"TERM": "dumb"}).raw == "done\r\n"
    piped = subprocess.run([sys.executable, "-c", _SLOW, "0"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert (piped.stdout, piped.stderr) == ("done\n", "")


def test_no_color_still_tells() -> None:
    shown = on_terminal(["-c", _SLOW, "0"], env={"NO_COLOR": "1"})
    assert "reading the model" in shown.text
    assert "\x1b[3" not in shown.raw
    assert shown.left == ["done"]


def test_a_file_is_watched_while_nothing_else_can_be_drawn(tmp_path: Path) -> None:
    shown = on_terminal(["-c", _GROWS, tmp_path / "model.bin"])
    assert "write model.bin" in shown.text
    assert "1.0 MiB of 4.0 MiB" in shown.text
    assert (shown.code, shown.left, shown.cursor_shown) == (0, [], True)


def test_ctrl_c_leaves_a_clean_terminal(tmp_path: Path) -> None:
    pair = ROOT / "samples" / "pair" / "target"
    args = ["-m", "ovgraft", "verify", pair, "--steps", "100000"]
    shown = on_terminal(args, interrupt_at="of 100,001")
    assert shown.left == ["error: interrupted"]
    assert shown.cursor_shown
    assert shown.code in (130, -2)  # -2 is SIGINT, 130 to a shell


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def test_quick_steps_show_nothing(stream: Terminal) -> None:
    line = StatusLine(line_console(stream, colored=False), 30)
    line.show("reading", 1, 2)
    line.close()
    assert stream.getvalue() == ""


def test_names_are_no_markup_and_give_up_their_middle(stream: Terminal) -> None:
    line = StatusLine(line_console(stream, colored=False), 0)
    line.show("write [bold]\x1b[2J" + "x" * 200 + "end")
    time.sleep(0.4)
    line.close()
    assert "write [bold]\\x1b[2Jxx" in stream.getvalue()
    assert "xend" in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()
    assert "x" * 80 not in stream.getvalue()


def test_steps_are_timed_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 4.0, 9.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    status = Status()
    with status.running(None):
        status("read")
        status("pass", 1, 2)
        status("pass", 2, 2)
        status("read")
    assert status.seconds == {"read": 2.0 + 5.0, "pass": 1.0}


def test_verbose_tells_how_long_each_step_took(run: Run, target: Path, tmp_path: Path) -> None:
    args = ("apply", target, "-p", "annotate-hidden-states", "--verify", "-o", tmp_path / "out", "-v")
    outcome = run(*args)
    assert outcome.code == 0
    lines = outcome.err[outcome.err.index("time\n") :].splitlines()[1:]
    assert all(line.split()[1] == "s" and float(line.split()[0]) >= 0 for line in lines)
    steps = [line.split(maxsplit=2)[2] for line in lines]
    assert "comparing numbers" in steps
    assert steps[-2:] == ["the rest", "total"]
    seconds = [float(line.split()[0]) for line in lines]
    assert sum(seconds[:-1]) == pytest.approx(seconds[-1], abs=0.01 * len(lines))
    assert "time" not in run("inspect", target, "-v").out
    assert run("inspect", target, "-v", "--json").data["schema"] == 1
    assert run("inspect", target).err == ""
    assert run("passes", "-v").err == ""


def test_the_times_of_a_command_that_fails(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ovgraft.cli.console._SHORTEST_STEP", 0.0)
    err = run("inspect", tmp_path / "nothing", "-v").err
    assert err.startswith("error: no such file or folder")
    assert "  reading " in err


_INTERRUPTED = """
import os, signal, sys
from ovgraft.cli import interrupts
interrupts.install()
"""


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _INTERRUPTED + text]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_an_interrupt_that_python_swallows_comes_back() -> None:
    done = run_program("""
from ovgraft.cli.status import Status
class Dies:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000): pass
Dies()
print("went on")
try:
    Status()("next step")
except KeyboardInterrupt:
    print("came back")
""")
    assert (done.stdout, done.stderr) == ("went on\ncame back\n", "")


def test_other_exceptions_that_nobody_catches_are_told() -> None:
    done = run_program("""
class Dies:
    def __del__(self):
        raise KeyError("x")
Dies()
""")
    assert "KeyError: 'x'" in done.stderr


def test_a_fork_dies_without_a_word() -> None:
    done = run_program("""
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000): pass
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""")
    assert (done.stdout, done.stderr) == ("130\n", "")


def test_an_interrupted_import_is_no_bug(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path, *_: object) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr("ovgraft.inspection.packages.inspect", broken)
    outcome = run("inspect", "x")
    assert (outcome.code, outcome.err) == (130, "error: interrupted\n")


def test_the_console_draws_no_line_into_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with Console().status() as status:
        status("reading")
    assert capsys.readouterr() == ("", "")
