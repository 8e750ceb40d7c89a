"""Packages on disk and a way to run the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ovgraft.cli.main import cli
from tests import models


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """stdout as one JSON document."""
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run() -> Run:
    """Run ``ovgraft`` in this process."""

    def invoke(*args: object, env: dict[str, str] | None = None) -> Outcome:
        result = CliRunner(env={"NO_COLOR": None, "FORCE_COLOR": None, **(env or {})}).invoke(cli, list(map(str, args)))
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert "Traceback" not in result.output or "-vv" in args
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return invoke


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target package, not annotated."""
    return models.write_package(models.tiny_decoder(layers=4), tmp_path_factory.mktemp("cli") / "target")


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its DFlash draft."""
    model = models.tiny_dflash_draft(n=3, target_layer_ids=(0, 2, 3))
    config = {"model_type": "qwen3", "dflash_config": {"block_size": 8}}
    return models.write_package(model, tmp_path_factory.mktemp("cli") / "draft", config=config)


@pytest.fixture(scope="session")
def grafted(tmp_path_factory: pytest.TempPathFactory, target: Path, draft: Path) -> Path:
    """Both of them, grafted."""
    out = tmp_path_factory.mktemp("cli") / "grafted"
    args = ["apply", "--target", str(target), "--draft", str(draft), "--preset", "dflash", "-o", str(out)]
    result = CliRunner().invoke(cli, args)
    assert result.exit_code == 0, result.output
    return out
