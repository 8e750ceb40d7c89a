"""Entry points of one group, without importing ``importlib.metadata`` when nobody has any.

That import is half of what listing the passes costs, and most installations have no third-party pass.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder


def read_entry_points(group: str) -> set[tuple[str, str, str]]:
    """Name, ``module:attribute`` and distribution of each entry point of a group."""
    if not _may_exist(group):
        return set()
    import importlib.metadata

    points = importlib.metadata.entry_points(group=group)
    return {(point.name, point.value, point.dist.name if point.dist else "unknown") for point in points}


def _may_exist(group: str) -> bool:
    """Whether ``importlib.metadata`` could find any: False only when it certainly finds none."""
    if any(finder is not PathFinder and hasattr(finder, "find_distributions") for finder in sys.meta_path):
        return True
    header = f"[{group}]".encode()
    return any(_mentions(path or os.curdir, header) for path in sys.path if os.path.exists(path or os.curdir))


def _mentions(path: str, header: bytes) -> bool:
    try:
        folders = [entry.path for entry in os.scandir(path) if entry.name.endswith((".dist-info", ".egg-info", ".egg"))]
    except OSError:  # a zip file, or not ours to read
        return True
    for folder in folders:
        for inside in ("entry_points.txt", os.path.join("EGG-INFO", "entry_points.txt")):
            try:
                with open(os.path.join(folder, inside), "rb") as file:
                    if header in file.read():
                        return True
            except OSError:
                continue
    return False
