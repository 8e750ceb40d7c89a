"""A headless Chromium as a plain program: a page in, its DOM or a picture out."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio")


@dataclass(frozen=True)
class Seen:
    """What the browser made of a page.

    Attributes:
        dom: After scripts ran, as HTML text.
        console: Lines of its console, errors and refused requests included.
    """

    dom: str
    console: tuple[str, ...]


def find() -> str:
    """The browser; skips the test, with the reason, where there is none."""
    program = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    return program


def look(program: str, url: str, profile: Path, *, flags: tuple[str, ...] = (), width: int = 1200) -> Seen:
    """Open a page and read its DOM after three seconds of its own time."""
    done = _run(program, url, profile, "--dump-dom", "--enable-logging=stderr", f"--window-size={width},900", *flags)
    return Seen(done.stdout, tuple(re.findall(r"CONSOLE\S*\] (.*)", done.stderr)))


def photograph(
    program: str, url: str, profile: Path, file: Path, *, size: tuple[int, int], flags: tuple[str, ...] = ()
) -> None:
    """Write a PNG of a page."""
    _run(program, url, profile, f"--screenshot={file}", f"--window-size={size[0]},{size[1]}", *flags)


def _run(program: str, url: str, profile: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [program, *_FLAGS, f"--user-data-dir={profile}", "--virtual-time-budget=3000", *flags, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done
