"""What a pass is: a frozen dataclass whose fields are its options, and the context it reports to."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ovgraft.noderef import NodeRef

if TYPE_CHECKING:
    from ovgraft.graft import Graft

EditKind = Literal["add", "remove", "replace", "update", "metadata"]
ModelRole = Literal["target", "draft"]


@dataclass(frozen=True, slots=True)
class Edit:
    """One change a pass made.

    Attributes:
        kind: ``metadata`` for model-level rt_info, else what happened to the node.
        model: Which package of the graft was edited.
        text: One clause for people, for example ``output last_hidden_state added after layers 1, 3, 4``.
        node: The node, None for metadata.
    """

    kind: EditKind
    model: ModelRole
    text: str
    node: NodeRef | None = None

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        node = None if self.node is None else self.node.to_dict()
        return {"kind": self.kind, "model": self.model, "text": self.text, "node": node}


@dataclass(slots=True)
class Context:
    """One per pass run: the only way a pass says what it did.

    Attributes:
        edits: Changes, in the order they were made. A pass without edits changed nothing.
        remarks: Things worth telling that are not changes, for example ``unchanged: the annotation is valid``.
        progress: Called as ``progress(done, total, what)`` by passes with long loops.
    """

    edits: list[Edit] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    progress: Callable[[int, int, str], None] = lambda done, total, what: None

    def note(self, kind: EditKind, model: ModelRole, text: str, node: NodeRef | None = None) -> None:
        """Record a change."""
        self.edits.append(Edit(kind, model, text, node))

    def remark(self, text: str) -> None:
        """Say something that is not a change."""
        self.remarks.append(text)


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A pass option: a dataclass field with help text.

    Args:
        default: Value when not given; ``None`` means "work it out".
        help: One line for ``ovgraft passes NAME``.
        **metadata: Further field metadata, for example ``example="1,3,4"``.
    """
    return field(default=default, metadata={"help": help, **metadata})


@dataclass(frozen=True, kw_only=True)
class Pass(ABC):
    """Base of all passes. Subclasses are frozen dataclasses; each field is an option.

    A pass edits a :class:`~ovgraft.graft.Graft` in place. It never saves, never prints and keeps no state. The pipeline
    calls ``requires``, takes a clone, calls ``apply``, validates the models, calls ``ensures``, and puts the clone back
    when any of them raises.

    The first line of the docstring is the summary that ``ovgraft passes`` prints.
    """

    name: ClassVar[str]
    needs_draft: ClassVar[bool] = False
    metadata_only: ClassVar[bool] = False
    """Weights stay as they are, so the command line copies them while the pass runs. A wrong word costs time only."""

    def requires(self, graft: Graft) -> None:  # noqa: B027 (a pass may have nothing to check)
        """Cheap checks before anything is cloned; analysis may also raise from ``apply`` before its first edit.

        Raises:
            PreconditionError: The graft is not what the pass needs.
        """

    @abstractmethod
    def apply(self, graft: Graft, ctx: Context) -> None:
        """Edit in place and note every edit on ``ctx``."""

    def ensures(self, graft: Graft) -> None:  # noqa: B027
        """Check the promise.

        Raises:
            PostconditionError: The promise was not kept.
        """

    @classmethod
    def summary(cls) -> str:
        """First line of the docstring."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    @classmethod
    def options(cls) -> tuple[dataclasses.Field[Any], ...]:
        """The option fields, in declaration order."""
        return dataclasses.fields(cls)
