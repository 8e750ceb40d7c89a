"""Every command and every Python block of README and docs runs, in order, in a folder with the samples.

A console block holds commands behind ``$ ``; ``# exit N`` at the end of a line says that N is the right exit code.
``sh`` blocks are for reading: they install things.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
def test_page_runs(page: Path, tmp_path: Path) -> None:
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "NO_COLOR": "1",
    }
    for language, content in blocks(page):
        if language == "python":
            steps = [([sys.executable, "-c", content], 0, content)]
        elif language == "console":
            steps = [(["sh", "-c", line], code, line) for line, code in commands(content)]
        else:
            continue
        for arguments, code, shown in steps:
            done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == code, f"{shown}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_comments_in_console_blocks_are_not_commands() -> None:
    assert commands("$ ovgraft passes\ntext\n$ ovgraft inspect x  # exit 3\n") == [
        ("ovgraft passes", 0),
        ("ovgraft inspect x", 3),
    ]
