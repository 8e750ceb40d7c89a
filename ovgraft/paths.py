"""What paths are called."""

from __future__ import annotations

from pathlib import Path


def path_name(path: Path) -> str:
    """Name of a file or folder, also of one that was named as ``.`` or ``..``; ``/`` is called that."""
    return (path.name if path.name not in ("", "..") else path.resolve().name) or str(path)
