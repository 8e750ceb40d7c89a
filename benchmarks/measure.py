"""Run a job in a fresh process; its result, and its peak private memory above what its imports take.

Private memory is RssAnon: pages of mapped files, which the kernel can drop at any time, do not count.
"""

from __future__ import annotations

import gc
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
_IMPORTED = "imported"


@dataclass(frozen=True)
class Run:
    """One job.

    Attributes:
        value: What the job returned.
        peak_mib: Highest RssAnon minus RssAnon after the imports, MiB.
    """

    value: Any
    peak_mib: float


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: What was measured.
        found: Its value as text, with unit.
        reference: What it is compared with, as text; the budget itself when that is absolute.
        ratio: found / reference.
        budget: The most ``ratio`` may be; None for lines that only inform.
    """

    what: str
    found: str
    reference: str
    ratio: float
    budget: float | None

    @property
    def verdict(self) -> str:
        """``ok``, ``over``, or nothing."""
        if self.budget is None:
            return ""
        return "ok" if self.ratio <= self.budget else "over"


def run(job: str, *arguments: Any) -> Run:
    """Call ``module:function`` with JSON arguments in a fresh process.

    Raises:
        RuntimeError: The process failed; holds its stderr.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.measure", job, json.dumps(arguments, default=str)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    first = process.stdout.readline().strip()
    start = peak = _rss_anon(process.pid)
    if first == _IMPORTED:
        process.stdin.write("go\n")
        process.stdin.flush()
        while process.poll() is None:
            peak = max(peak, _rss_anon(process.pid))
            time.sleep(0.002)
    output, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{job} failed:\n{errors}")
    return Run(json.loads(output.splitlines()[-1]), (peak - start) / MIB)


def seconds(work: Callable[[], object], repeat: int = 1) -> float:
    """Shortest wall time of ``repeat`` calls; what a call returns is dropped before the next."""
    best = float("inf")
    for _ in range(repeat):
        gc.collect()
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
        del result
    return best


def _rss_anon(pid: int) -> int:
    """Bytes; 0 when the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def _child(job: str, arguments: str) -> None:
    module, _, name = job.partition(":")
    work = getattr(importlib.import_module(module), name)
    print(_IMPORTED, flush=True)
    sys.stdin.readline()
    print(json.dumps(work(*json.loads(arguments))))


if __name__ == "__main__":
    _child(*sys.argv[1:])
