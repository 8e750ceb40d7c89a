"""The two records of a run: ``graft.json``, the same for the same input, and ``--report``, with durations and paths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ovgraft.checks import Verification
    from ovgraft.graft import Package
    from ovgraft.passbase import ModelRole
    from ovgraft.pipeline import Report
    from ovgraft.saving import Saved

SCHEMA = 1


def graft_record(report: Report, saved: Saved) -> bytes:
    """The content of ``graft.json``.

    Args:
        report: What was done.
        saved: What was written; digests nobody has computed are left out.
    """
    digests = {f"{model.role}/{model.name}": model.digest for model in saved.models if model.digest is not None}
    content = {
        "schema": SCHEMA,
        "pipeline": report.pipeline,
        "versions": dict(report.versions),
        "digests": digests,
        "files": list(saved.files),
        "report": report.to_dict(),
    }
    return (json.dumps(content, indent=2) + "\n").encode()


def run_record(
    report: Report,
    verification: Verification | None,
    packages: Mapping[ModelRole, Package],
    output: Path | None,
    *,
    written: bool,
) -> dict[str, Any]:
    """The JSON form of a whole run."""
    content = report.to_dict(durations=True)
    content["verification"] = None if verification is None else verification.to_dict()
    content["written"] = written
    content["paths"] = {
        **{role: str(package.path.resolve()) for role, package in packages.items()},
        "output": None if output is None else str(output.resolve()),
    }
    return content


def report_text(record: dict[str, Any]) -> bytes:
    """The content of ``--report``: the record of a run and the time it ended."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return (json.dumps({**record, "time": now}, indent=2) + "\n").encode()
