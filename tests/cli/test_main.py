from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import ovgraft
from ovgraft.cli import main as cli_main
from ovgraft.cli.main import cli
from tests.cli.conftest import Run
from tests.support import ROOT

COMMANDS = ("apply", "build-draft", "diff", "doctor", "inspect", "passes", "verify")
HEAVY = ("openvino", "onnx", "networkx", "numpy", "ml_dtypes", "safetensors")


def ovgraft_process(*args: object, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """A real process."""
    command = [sys.executable, "-m", "ovgraft", *map(str, args)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False)


def imported_by(args: Sequence[str]) -> set[str]:
    """Top-level packages in ``sys.modules`` after a command."""
    code = (
        "import sys, json\n"
        "from ovgraft.cli.main import cli\n"
        "try:\n"
        f"    cli.main({list(args)!r})\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("args", [["--help"], ["apply", "--help"], ["passes"], ["passes", "--json"], ["--version"]])
def test_light_commands_import_nothing_heavy(args: list[str]) -> None:
    assert not imported_by(args) & set(HEAVY)


def test_help_draws_nothing_with_rich_and_reads_no_pass() -> None:
    assert not imported_by(["--help"]) & {"rich", "msgspec"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(run: Run, name: str) -> None:
    for flag in ("-h", "--help"):
        outcome = run(name, flag)
        assert outcome.code == 0
        assert f"\n    ovgraft {name}" in outcome.out
        assert "Example:" in outcome.out
        assert "--json" in outcome.out


def test_the_table_of_commands_says_what_the_commands_say() -> None:
    context = click.Context(cli)
    assert cli.list_commands(context) == list(COMMANDS)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        assert cli_main._COMMANDS[name] == (command.help or "").partition("\n")[0]


def test_help_documents_the_exit_codes(run: Run) -> None:
    text = run("--help").out
    for code in ("0 ", "1 ", "2 ", "3 ", "4 ", "5 ", "130"):
        assert f"\n    {code}" in text
    assert run().code == 2


def test_version(run: Run) -> None:
    assert run("--version").out.startswith(f"ovgraft {ovgraft.__version__} (openvino ")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--nope"], "no such option '--nope'"),
        (["inspekt", "x"], "no such command 'inspekt'"),
        (["inspect"], "missing argument 'PATH'"),
        (["passes", "--color", "pink"], "invalid value for '--color'"),
    ],
)
def test_usage_errors_are_one_sentence_and_2(run: Run, args: list[str], said: str) -> None:
    outcome = run(*args)
    assert outcome.code == 2
    assert outcome.out == ""
    assert said.lower() in outcome.err.lower()
    assert outcome.err.startswith("error: ")


def test_a_mistyped_command_gets_a_hint(run: Run) -> None:
    assert "did you mean 'inspect'?" in run("inspekt", "x").err


def test_global_options_stand_on_either_side(run: Run, tmp_path: Path) -> None:
    broken = tmp_path / "x.xml"
    broken.write_text("<net")
    (tmp_path / "x.bin").write_bytes(b"")
    for args in (["-v", "inspect", broken], ["inspect", broken, "-v"]):
        outcome = run(*args)
        assert outcome.code == 3
        assert len(outcome.err.splitlines()) >= 1


def test_an_exception_nobody_planned_is_5_and_says_how_to_see_more(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(path: Path, *_: object) -> None:
        raise KeyError("[bold]x")

    monkeypatch.setattr("ovgraft.inspection.packages.inspect", boom)
    outcome = run("inspect", "x")
    assert outcome.code == 5
    assert outcome.err.splitlines() == [
        "error: unexpected KeyError: '[bold]x'",
        "  hint: this is a bug in ovgraft; run again with -vv for the traceback",
    ]
    assert "Traceback" in run("-vv", "inspect", "x").err
    assert run("inspect", "x", "--json").data["error"]["type"] == "KeyError"


def test_ctrl_c_is_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(path: Path, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ovgraft.inspection.packages.inspect", interrupt)
    outcome = run("inspect", "x")
    assert outcome.code == 130
    assert "interrupted" in outcome.err


def test_a_file_that_ends_early_is_no_interrupt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(path: Path, *_: object) -> None:
        raise EOFError("no data left")

    monkeypatch.setattr("ovgraft.inspection.packages.inspect", ends)
    assert run("inspect", "x").code == 5


def test_an_interrupt_while_modules_are_imported_is_quiet() -> None:
    program = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from ovgraft.__main__ import run
run()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_what_the_system_says_is_3(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object) -> None:
        raise OSError(28, "No space left on device", "out/model.bin")

    monkeypatch.setattr("ovgraft.inspection.packages.inspect", full)
    outcome = run("inspect", "x")
    assert outcome.code == 3
    assert outcome.err == "error: No space left on device: out/model.bin\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m ovgraft passes --json | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("{", "")


def test_the_real_script_exits_with_the_code() -> None:
    done = ovgraft_process("inspect", "does-not-exist")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "error: no such file or folder: does-not-exist\n"


def test_click_adds_no_error_text_of_its_own() -> None:
    result = CliRunner().invoke(cli, ["verify"])
    assert "Usage:" not in result.stderr


def test_no_color_is_color_never(run: Run, target: Path) -> None:
    plain = run("inspect", target, "--no-color").out
    assert "\x1b[" not in plain
    assert plain == run("inspect", target, "--color", "never").out
    assert "\x1b[" in run("inspect", target, "--color", "always").out


@pytest.mark.parametrize("arguments", [("apply", "", "-p", "move-fc", "-o", "x"), ("inspect", ""), ("verify", "", "b")])
def test_an_empty_path_is_not_the_current_folder(run: Run, arguments: tuple[str, ...]) -> None:
    outcome = run(*arguments)
    assert outcome.code == 2
    assert "an empty path" in outcome.err


def test_without_a_command_there_is_the_help(run: Run) -> None:
    outcome = run()
    assert outcome.code == 2
    assert outcome.err.startswith("Usage: ovgraft")
    assert "Commands:\n  apply " in outcome.err
    assert "error:" not in outcome.err


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(closed: str) -> None:
    command = f"{sys.executable} -m ovgraft passes {closed}"
    assert subprocess.run(["/bin/sh", "-c", command], cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode == 0
