"""Every error ovgraft raises on purpose.

An error is data first: what went wrong, where, what was expected and what was found. ``str(error)`` composes the one
sentence people read; the command line prints it, the hint below it, and exits with ``exit_code``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ovgraft.noderef import NodeRef
from ovgraft.paths import path_name


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason of a refusal.

    Attributes:
        code: Stable kebab-case word for programs, for example ``no-lm-head``.
        message: One sentence for people.
        nodes: The nodes it speaks of.
    """

    code: str
    message: str
    nodes: tuple[NodeRef, ...] = ()

    def __str__(self) -> str:
        where = f" [{', '.join(map(str, self.nodes))}]" if self.nodes else ""
        return f"{self.message}{where}"

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {"code": self.code, "message": self.message, "nodes": [node.to_dict() for node in self.nodes]}


class OvgraftError(Exception):
    """Base of all errors; raised itself never.

    Args:
        message: What is wrong, a clause without a final stop.
        hint: What the reader can do about it.
        file: The file or folder it is about.
        pass_name: The pass that found it; the pipeline fills it in.
        node: The node it is about.
        expected: What would have been right.
        found: What was there instead.
        reasons: The findings behind a refusal, in the order they were made.
    """

    exit_code: ClassVar[int] = 5

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        file: str | Path | None = None,
        pass_name: str | None = None,
        node: NodeRef | None = None,
        expected: object = None,
        found: object = None,
        reasons: tuple[Reason, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.file = None if file is None else Path(file)
        self.pass_name = pass_name
        self.node = node
        self.expected = expected
        self.found = found
        self.reasons = reasons

    def __str__(self) -> str:
        parts = [f"{self.pass_name}: " if self.pass_name else "", self.message]
        if self.node is not None:
            parts.append(f" at {self.node}")
        if self.expected is not None or self.found is not None:
            said = [
                f"{word} {value}"
                for word, value in (("expected", self.expected), ("found", self.found))
                if value is not None
            ]
            parts.append(": " + ", ".join(said))
        if self.file is not None and str(self.file) not in self.message:
            parts.append(f" [{self.file}]")
        return "".join(parts)

    def to_dict(self) -> dict[str, object]:
        """The JSON form; keys whose value is absent are left out."""
        data: dict[str, object] = {"type": type(self).__name__, "message": self.message}
        optional: dict[str, object] = {
            "hint": self.hint,
            "file": None if self.file is None else path_name(self.file),
            "pass": self.pass_name,
            "node": None if self.node is None else self.node.to_dict(),
            "expected": None if self.expected is None else str(self.expected),
            "found": None if self.found is None else str(self.found),
            "reasons": [reason.to_dict() for reason in self.reasons] or None,
        }
        data.update({key: value for key, value in optional.items() if value is not None})
        return data


class MismatchError(OvgraftError):
    """A comparison said no: verify found different numbers, diff found a difference."""

    exit_code = 1


class SpecError(OvgraftError):
    """Bad pipeline text, option or configuration.

    Args:
        text: The whole text that was parsed.
        span: Start and end of the bad part in ``text``.
    """

    exit_code = 2

    def __init__(
        self, message: str, *, text: str | None = None, span: tuple[int, int] | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.text = text
        self.span = span

    def caret(self) -> str | None:
        """The text with the bad part underlined, two lines; None when there is no position."""
        if self.text is None or self.span is None:
            return None
        start, end = self.span
        first = self.text.rfind("\n", 0, start) + 1
        last = self.text.find("\n", start)
        line = self.text[first : None if last < 0 else last]
        width = max(1, min(end, first + len(line)) - start)
        return f"{line}\n{' ' * (start - first)}^{'~' * (width - 1)}"


class UnknownPassError(SpecError):
    """A pass name that no registry entry has."""


class ModelFileError(OvgraftError):
    """A file that is missing, damaged, mismatched, or would be overwritten."""

    exit_code = 3


def system_error(error: OSError) -> ModelFileError:
    """What the system said, as an error about a file."""
    where = "" if error.filename is None else f": {error.filename}"
    return ModelFileError(f"{error.strerror or error}{where}")


class CheckpointError(ModelFileError):
    """A draft checkpoint that is incomplete, contradictory or not understood.

    Args:
        key: The config key or tensor name it is about; the message names it.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        file: str | Path | None = None,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
        reasons: tuple[Reason, ...] = (),
    ) -> None:
        if key is not None and key not in message and key.rpartition(".")[2] not in message:
            message = f"{message} ({key})"
        super().__init__(message, file=file, expected=expected, found=found, hint=hint, reasons=reasons)
        self.key = key


class PassError(OvgraftError):
    """A pass did not do its work; ``ran_before`` lists the passes that did, in text form."""

    exit_code = 4
    position: int | None = None
    ran_before: tuple[str, ...] = ()


class PreconditionError(PassError):
    """The graft is not what the pass needs; nothing was changed."""


class StructureError(PreconditionError):
    """The graph does not say clearly enough where something is; ``reasons`` lists what was found."""


class PostconditionError(PassError):
    """The pass ran and did not keep its promise."""


class ValidationError(PassError):
    """OpenVINO rejects the model a pass left behind."""


class ContractError(PassError):
    """A pass reported something other than what it did."""
