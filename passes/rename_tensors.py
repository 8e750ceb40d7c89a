"""rename-tensors: other names for inputs, outputs and values in between."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ovgraft import ir
from ovgraft.errors import PostconditionError, PreconditionError
from ovgraft.passbase import Context, ModelRole, Pass, option
from ovgraft.passes._selection import FILE_HELP, MODEL_HELP, select

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.graft import Graft


@dataclass(frozen=True, kw_only=True)
class RenameTensors(Pass):
    """Rename input, output and intermediate tensors.

    All renames happen at once, so ``map=a=b,b=a`` swaps two names. Other names of the same tensor stay. An input or
    output whose friendly name is the old name gets the new one there too. A second run fails: the old names are gone.
    """

    name: ClassVar[str] = "rename-tensors"

    map: tuple[str, ...] = option((), "renames, each OLD=NEW", example="logits=draft_logits,h=hidden_states")
    friendly_names: bool = option(
        False, "give every input its tensor name as friendly name: OpenVINO's PagedAttention conversion goes by it"
    )
    model: Literal["target", "draft", "both"] = option("target", MODEL_HELP)
    file: str | None = option(None, FILE_HELP)

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            ValueError: Nothing to do, a rename that is not OLD=NEW, or a name given twice.
        """
        if not self.map and not self.friendly_names:
            raise ValueError("give map=OLD=NEW or friendly-names=true")
        for entry in self.map:
            if entry.count("=") != 1 or "" in entry.split("="):
                raise ValueError(f"a rename is written OLD=NEW, got '{entry}'")
        for side, names in zip(("old", "new"), zip(*self._pairs(), strict=True), strict=False):
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"'{name}' is the {side} name of several renames")

    def requires(self, graft: Graft) -> None:
        """Every old name names one tensor, and no new name is taken.

        Raises:
            PreconditionError: One does not, or one is.
        """
        for role, model in select(graft, self.model, self.file):
            self._check_names(role, model)

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Rename."""
        for role, model in select(graft, self.model, self.file):
            for old, new in self._pairs():
                ctx.note("update", role, f"tensor {old} renamed {new}")
            self._rename(model)
            if self.friendly_names:
                _sync_friendly_names(role, model, ctx)
        if not ctx.edits:
            ctx.remark("unchanged: every input has its tensor name as friendly name")

    def ensures(self, graft: Graft) -> None:
        """The new names are there, the old ones are not."""
        for role, model in select(graft, self.model, self.file):
            names = {name for port in _ports(model) for name in port.get_names()}
            olds, news = {old for old, _ in self._pairs()}, {new for _, new in self._pairs()}
            if lost := sorted(news - names):
                raise PostconditionError(f"{role} tensors did not take their names: {', '.join(lost)}")
            if left := sorted((olds - news) & names):
                raise PostconditionError(f"{role} tensors kept their names: {', '.join(left)}")

    def _pairs(self) -> list[tuple[str, str]]:
        return [(old, new) for old, _, new in (entry.partition("=") for entry in self.map)]

    def _check_names(self, role: ModelRole, model: ov.Model) -> None:
        carriers: dict[str, set[str]] = {}
        for port in _ports(model):
            node = port.get_node()
            if node.get_type_name() == "Result":  # one tensor with its source
                port = node.input_value(0)
            for name in port.get_names():
                carriers.setdefault(name, set()).add(f"{ir.node_ref(port.get_node())} output {port.get_index()}")
        olds = {old for old, _ in self._pairs()}
        for old, new in self._pairs():
            found = sorted(carriers.get(old, ()))
            if not found:
                close = difflib.get_close_matches(old, carriers, n=1)
                hint = f"did you mean '{close[0]}'?" if close else None
                raise PreconditionError(f"the {role} has no tensor '{old}'", hint=hint)
            if len(found) > 1:
                raise PreconditionError(f"the {role} has several tensors '{old}': {', '.join(found)}")
            if new in carriers and new not in olds:
                raise PreconditionError(f"the {role} has a tensor '{new}' already: {', '.join(carriers[new])}")

    def _rename(self, model: ov.Model) -> None:
        renames = dict(self._pairs())
        # all names first: a Result shares them with its source, so a renamed source would be read again as its Result
        named = [(port, set(port.get_names())) for port in _ports(model)]
        # a Result with a name of its own has to be told itself, and takes its old one off its source
        for port, names in reversed(named):
            if not names.isdisjoint(renames):
                port.set_names({renames.get(name, name) for name in names})
                node = port.get_node()
                if node.get_type_name() in ("Parameter", "Result") and node.get_friendly_name() in renames:
                    node.set_friendly_name(renames[node.get_friendly_name()])


def _ports(model: ov.Model) -> Iterator[ov.Output]:
    for node in model.get_ordered_ops():
        yield from node.outputs()


def _sync_friendly_names(role: ModelRole, model: ov.Model, ctx: Context) -> None:
    taken = {node.get_friendly_name(): node for node in model.get_ordered_ops()}
    for parameter in model.get_parameters():
        names: Sequence[str] = sorted(parameter.output(0).get_names())
        friendly = parameter.get_friendly_name()
        if not names or friendly in names:
            continue
        if len(names) > 1:
            raise PreconditionError(
                "an input has several tensor names", node=ir.node_ref(parameter, model), found=", ".join(names)
            )
        [name] = names
        if name in taken:
            raise PreconditionError(f"friendly name '{name}' is taken", node=ir.node_ref(taken[name], model))
        parameter.set_friendly_name(name)
        taken[name] = parameter
        ctx.note("update", role, f"input {friendly} has the friendly name {name}", ir.node_ref(parameter, model))
