"""What all checks share: a model that several tests run is compiled once."""

from __future__ import annotations

import openvino as ov
import pytest

from tests import support


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks compile both sides of every comparison, and one side is mostly the same untouched pair."""
    monkeypatch.setattr(ov.Core, "compile_model", support.compile_once)
