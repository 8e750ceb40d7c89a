"""What a run did: data first; the command line draws its table from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ovgraft.errors import OvgraftError, PassError
from ovgraft.passbase import Edit

SCHEMA = 1

Status = Literal["changed", "unchanged", "skipped", "failed", "not-run"]
"""``failed`` stopped the run, ``skipped`` failed and the run went on; both were rolled back."""


@dataclass(frozen=True, slots=True)
class Size:
    """What a model is made of.

    Attributes:
        nodes: Number of ops.
        weight_bytes: Bytes of its constants.
    """

    nodes: int
    weight_bytes: int


SizeTable = Mapping[str, Size]
"""Package role and IR name, for example ``target/openvino_model``, to size; IRs not read yet are absent."""


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One pass of one run.

    Attributes:
        position: 1 for the first pass.
        spec: The pass in text form, absolute paths by their last name.
        status: What became of it.
        edits: What it changed.
        remarks: What it had to say besides.
        error: Why it failed.
        before: SizeTable before it.
        after: SizeTable after it; after a rollback those before it.
        dump: Name of what :class:`~ovgraft.pipeline.hooks.Dump` wrote after it.
        seconds: How long it took, hooks included; measured by :class:`~ovgraft.pipeline.hooks.Timing`.
        verify_seconds: The part of it :class:`~ovgraft.pipeline.hooks.Verify` took.
    """

    position: int
    spec: str
    status: Status
    edits: tuple[Edit, ...] = ()
    remarks: tuple[str, ...] = ()
    error: OvgraftError | None = None
    before: SizeTable = field(default_factory=dict)
    after: SizeTable = field(default_factory=dict)
    dump: str | None = None
    seconds: float | None = field(default=None, compare=False)
    verify_seconds: float | None = field(default=None, compare=False)

    def to_dict(self, *, durations: bool = False) -> dict[str, Any]:
        """The JSON form; without ``durations`` the same run gives the same bytes."""
        data: dict[str, Any] = {
            "position": self.position,
            "pass": self.spec,
            "status": self.status,
            "edits": [edit.to_dict() for edit in self.edits],
            "remarks": list(self.remarks),
            "error": None if self.error is None else self.error.to_dict(),
            "models": _size_table(self.before, self.after),
            "dump": self.dump,
        }
        if durations:
            data |= {"seconds": self.seconds, "verify_seconds": self.verify_seconds}
        return data


@dataclass(frozen=True, slots=True)
class Report:
    """What a pipeline did to a graft.

    Attributes:
        pipeline: Its text form, absolute paths by their last name.
        records: One per pass, in order.
        models: Package role to the base name of what it was loaded from.
        strict: Whether fingerprints proved the statuses.
        dry_run: Whether the graft was put back at the end.
        versions: Of ``ovgraft`` and ``openvino``.
    """

    pipeline: str
    records: tuple[PassRecord, ...]
    models: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    dry_run: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def error(self) -> OvgraftError | None:
        """Why the run stopped; None when it came to its end."""
        return next((record.error for record in self.records if record.status == "failed"), None)

    @property
    def changed(self) -> bool:
        """Whether any pass changed anything."""
        return any(record.status == "changed" for record in self.records)

    @property
    def metadata_only(self) -> bool:
        """Whether all changes were to model-level rt_info."""
        return all(edit.kind == "metadata" for record in self.records for edit in record.edits)

    @property
    def before(self) -> SizeTable:
        """Size of every IR when it was first measured."""
        return {name: size for record in reversed(self.records) for name, size in record.before.items()}

    @property
    def after(self) -> SizeTable:
        """Size of every IR when it was last measured."""
        return {name: size for record in self.records for name, size in record.after.items()}

    @property
    def seconds(self) -> float | None:
        """How long all passes took; None when nobody measured."""
        measured = [record.seconds for record in self.records if record.seconds is not None]
        return sum(measured) if measured else None

    def to_dict(self, *, durations: bool = False) -> dict[str, Any]:
        """The JSON form.

        Args:
            durations: Add what :class:`~ovgraft.pipeline.hooks.Timing` measured; without it the form is
                deterministic and names no folder of this machine.
        """
        data: dict[str, Any] = {
            "schema": SCHEMA,
            "versions": dict(self.versions),
            "pipeline": self.pipeline,
            "source": dict(self.models),
            "strict": self.strict,
            "dry_run": self.dry_run,
            "changed": self.changed,
            "models": _size_table(self.before, self.after),
            "passes": [record.to_dict(durations=durations) for record in self.records],
        }
        if durations:
            data["seconds"] = self.seconds
        return data


def stopped_at(error: OvgraftError, name: str, position: int, ran_before: tuple[str, ...]) -> OvgraftError:
    """Fill in where in the pipeline an error came up."""
    error.pass_name = name
    if isinstance(error, PassError):
        error.position, error.ran_before = position, ran_before
    return error


def _size_table(before: SizeTable, after: SizeTable) -> dict[str, Any]:
    """``{"target/openvino_model": {"nodes": [10, 12], "weight_bytes": [512, 512]}}``; null where not loaded."""
    return {
        name: {
            key: [None if side.get(name) is None else getattr(side[name], key) for side in (before, after)]
            for key in ("nodes", "weight_bytes")
        }
        for name in sorted({*before, *after})
    }
