"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import support


@pytest.fixture(scope="session")
def shared() -> Path:
    """The shared data: zoo, trained drafts, PyTorch truth."""
    if not (support.SHARED / "zoo").is_dir():
        pytest.skip(f"{support.SHARED_MISSING} at {support.SHARED}; set OVGRAFT_SHARED")
    return support.SHARED


@pytest.fixture(scope="session")
def zoo(shared: Path) -> Callable[[str], Path]:
    """Folder of an exported model by name."""

    def folder(name: str) -> Path:
        path = shared / "zoo" / name
        assert path.is_dir(), f"{name} is not in the zoo"
        return path

    return folder


@pytest.fixture
def parity() -> dict[str, Any]:
    """Compile settings under which equal graphs give equal numbers."""
    return dict(support.PARITY)
