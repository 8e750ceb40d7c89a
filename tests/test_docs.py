"""Every command and every Python block of README and docs runs, in order, in a folder with the samples.

A console block holds commands behind ``$ ``; ``# exit N`` at the end of a line says that N is the right exit code.
``sh`` blocks are for reading: they install things.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from click.testing import CliRunner

from ovgraft.cli.main import cli
from tests.support import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_OWN_TESTS = {"markov-head.md"}
"""Pages whose program runs on a pair of its own, in tests/drafts/markov."""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"\s+# exit (\d+)$")
_SETTING_UP = re.compile(r"^(git clone|make (demo|test|bench|lint))\b")


def blocks(page: Path) -> list[tuple[str, str]]:
    """``(language, content)`` of every fenced block."""
    return [(match[1], match[2]) for match in _BLOCK.finditer(page.read_text())]


def commands(content: str) -> list[tuple[str, int]]:
    """Commands of a console block with their exit codes; a trailing backslash continues a line."""
    joined = content.replace("\\\n", " ")
    lines = [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
    found = [(_EXIT.sub("", line), int(match[1]) if (match := _EXIT.search(line)) else 0) for line in lines]
    return [entry for entry in found if not _SETTING_UP.match(entry[0])]


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in _OWN_TESTS], ids=lambda page: page.name)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    for language, content in blocks(page):
        if language == "python":
            found, said = in_a_shell([sys.executable, "-c", content])
            assert found == 0, f"{content}\n{said}"
        elif language == "console":
            for line, code in commands(content):
                found, said = in_a_shell(["sh", "-c", line]) if page.name == "README.md" else here(line)
                assert found == code, f"{line}\n{said}"


def in_a_shell(arguments: list[str]) -> tuple[int, str]:
    """Exit code and output of a process of its own."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "NO_COLOR": "1",
    }
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def here(line: str) -> tuple[int, str]:
    """Exit code and output of an ``ovgraft`` command in this process, which has imported everything already.

    The README's commands go through a shell, so the script itself is run too.
    """
    name, *arguments = shlex.split(line)
    assert name == "ovgraft", f"only ovgraft runs here: {line}"
    file = None
    if ">" in arguments:
        *arguments, arrow, file = arguments
        assert arrow == ">", f"one file at the end takes the output: {line}"
    done = CliRunner(env={"NO_COLOR": "1"}).invoke(cli, arguments)
    if file is not None:
        Path(file).write_text(done.stdout, encoding="utf-8")
    trace = "".join(traceback.format_exception(done.exception)) if done.exit_code not in range(5) else ""
    return done.exit_code, done.output + trace


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_comments_in_console_blocks_are_not_commands() -> None:
    assert commands("$ ovgraft passes\ntext\n$ ovgraft inspect x  # exit 3\n") == [
        ("ovgraft passes", 0),
        ("ovgraft inspect x", 3),
    ]
