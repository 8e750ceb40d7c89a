"""All measurements in one table: ``python -m benchmarks [NAME ...] [--write FILE] [--folder DIR]``."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
from pathlib import Path

import openvino as ov

import ovgraft
from benchmarks.measure import ROOT, Row

SUITES = {
    "startup": "Starting the command line",
    "big_model": "36 layers, 4 GiB of weights",
    "passes": "Pass manager and layer search",
    "inspection": "inspect, diff and doctor",
    "markov_head": "Markov heads",
    "paged": "PagedAttention",
    "build_draft": "Drafts from checkpoints",
}


def table(rows: list[Row]) -> str:
    """A Markdown table, aligned for the terminal too."""
    cells = [("what", "found", "against", "ratio", "budget", "")]
    cells += [
        (
            row.what,
            row.found,
            row.reference,
            f"{row.ratio:.2f}",
            "" if row.budget is None else f"{row.budget:g}",
            row.verdict,
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def page(tables: dict[str, str]) -> str:
    """docs/performance.md."""
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    return "\n".join(
        [
            "# Performance",
            "",
            f"`make bench` writes this page. ovgraft {ovgraft.__version__}, OpenVINO {ov.get_version()};",
            f"{machine}.",
            "",
            "The two sides of a ratio take turns in one process, and each counts with its fastest turn. Memory is",
            "RssAnon above what the imports take, in a process that does nothing else; pages of mapped files do not",
            "count. An absolute budget stands in the third column, and the ratio is taken against it.",
            "",
            *(f"## {SUITES[name]}\n\n{text}\n" for name, text in tables.items()),
        ]
    )


def written(file: Path) -> dict[str, str]:
    """The tables of a page, by suite: those that are not measured now stay."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    parts = dict(part.split("\n\n", 1) for part in text.split("\n## ")[1:])
    return {name: parts[title].strip() for name, title in SUITES.items() if title in parts}


def main() -> int:
    """Run, print, and write when asked.

    Returns:
        1 when a line is over its budget.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(SUITES)}; all of them when none is named")
    parser.add_argument("--write", type=Path, help="also write the tables into this page")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="where the big files go")
    options = parser.parse_args()
    if unknown := set(options.names) - set(SUITES):
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    options.folder.mkdir(parents=True, exist_ok=True)
    tables, over = {}, 0
    for name in options.names or SUITES:
        rows = importlib.import_module(f"benchmarks.{name}").rows(options.folder)
        tables[name] = table(rows)
        over += sum(row.verdict == "over" for row in rows)
        print(f"{SUITES[name]}\n{tables[name]}\n", flush=True)
    if options.write is not None:
        found = written(options.write) | tables
        page_text = page({name: found[name] for name in SUITES if name in found})
        options.write.write_text(page_text, encoding="utf-8")
    return int(over > 0)


if __name__ == "__main__":
    raise SystemExit(main())
