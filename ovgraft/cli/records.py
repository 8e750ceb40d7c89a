"""The two records of a run: ``graft.json``, the same for the same input, and ``--report``, with durations and paths."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ovgraft import ir
from ovgraft.cli.opening import packages
from ovgraft.drafts.contract import Key
from ovgraft.errors import ModelFileError

if TYPE_CHECKING:
    from ovgraft.checks import Verification
    from ovgraft.graft import Graft, Package
    from ovgraft.pipeline import Report

SCHEMA = 1


def graft_record(report: Report, graft: Graft) -> bytes:
    """The content of ``graft.json``."""
    content = {
        "schema": SCHEMA,
        "pipeline": report.pipeline,
        "versions": dict(report.versions),
        "digests": {role: _digests(package) for role, package in packages(graft).items()},
        "files": {
            role: {"folder": role, "models": sorted(package.models)} for role, package in packages(graft).items()
        },
        "report": report.to_dict(),
    }
    return _text(content).encode()


def run_record(
    report: Report, verification: Verification | None, graft: Graft, output: Path | None, *, written: bool
) -> dict[str, Any]:
    """The JSON form of a whole run."""
    content = report.to_dict(durations=True)
    content["verification"] = None if verification is None else verification.to_dict()
    content["written"] = written
    content["paths"] = {
        **{role: str(package.path.resolve()) for role, package in packages(graft).items()},
        "output": None if output is None else str(output.resolve()),
    }
    return content


def write_report(file: Path, record: dict[str, Any]) -> None:
    """Write ``--report``.

    Raises:
        ModelFileError: It cannot be written.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        file.write_text(_text({**record, "time": now}), encoding="utf-8")
    except OSError as error:
        raise ModelFileError(f"the report cannot be written: {error.strerror}", file=file) from error


def _digests(package: Package) -> dict[str, str]:
    """Digests that are known without reading a weight."""
    known = {name: ir.get_text(model, Key.BIN_DIGEST) for name, model in package.models.items()}
    return {name: digest for name, digest in sorted(known.items()) if digest is not None}


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"
