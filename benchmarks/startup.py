"""What the command line costs before it does anything: CPU time above bare Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import ROOT, Row

TURNS = 15
COMMANDS = {"ovgraft --help": (["--help"], 60.0), "ovgraft passes": (["passes"], 120.0)}


def rows(folder: Path) -> list[Row]:
    """One line a command; the bare Python takes turns with them."""
    program = "from ovgraft.cli.main import main; main()"
    bare = [sys.executable, "-c", "pass"]
    commands = {name: [sys.executable, "-c", program, *words] for name, (words, _) in COMMANDS.items()}
    best = dict.fromkeys(["bare", *commands], float("inf"))
    for _ in range(TURNS):
        for name, command in {"bare": bare, **commands}.items():
            best[name] = min(best[name], _cpu_ms(command))
    return [
        Row(f"{name}: CPU above bare Python", f"{above:.0f} ms", f"{budget:.0f} ms", above / budget, 1.0)
        for name, (_, budget) in COMMANDS.items()
        for above in [best[name] - best["bare"]]
    ]


def _cpu_ms(command: list[str]) -> float:
    """User and system time of one process."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return (usage.ru_utime + usage.ru_stime) * 1000
