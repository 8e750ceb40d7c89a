"""Fixtures that read a checkpoint written for one test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ovgraft.drafts.checkpoint import read_checkpoint
from ovgraft.drafts.spec import DraftSpec
from ovgraft.errors import CheckpointError
from tests.drafts.checkpoints import Config, Tensors, write_checkpoint


@pytest.fixture
def read(tmp_path: Path) -> Callable[[Config, Tensors], DraftSpec]:
    """Write config and tensors, read the spec."""
    return lambda config, tensors: read_checkpoint(write_checkpoint(tmp_path, config, tensors)).spec


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., CheckpointError]:
    """Write config and tensors, expect an error about a key, with a text in its message."""

    def refuse(config: Config, tensors: Tensors, key: str, match: str = "") -> CheckpointError:
        with pytest.raises(CheckpointError) as caught:
            read_checkpoint(write_checkpoint(tmp_path, config, tensors))
        assert caught.value.key == key, caught.value
        assert match in str(caught.value)
        assert caught.value.file is not None
        return caught.value

    return refuse
