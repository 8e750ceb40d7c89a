"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import support

LONGEST = (
    *("genai/test_smollm2_dspark", "pipeline/test_presets", "genai/test_forms", "genai/test_smollm2", "test_docs"),
    *("passes/test_compress_weights", "passes/test_move_fc", "passes/test_build_draft", "checks/test_doctor_run"),
)
"""Files of half a minute and more, in the order to begin with: one begun last would keep a single worker busy."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {f"tests/{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))


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
