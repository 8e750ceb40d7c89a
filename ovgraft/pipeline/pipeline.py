"""A pipeline: passes in the order they run, in Python, text or TOML form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ovgraft.errors import SpecError
from ovgraft.passbase import Pass
from ovgraft.pipeline import options, spec
from ovgraft.pipeline.registry import get_pass
from ovgraft.pipeline.run import OnError, execute

if TYPE_CHECKING:
    from ovgraft.graft import Graft
    from ovgraft.pipeline.hooks import Hook
    from ovgraft.pipeline.report import Report


class Pipeline:
    """Passes in the order they run.

    Args:
        passes: Passes, or pipeline text such as ``annotate-hidden-states,expose-hidden-states{layers=1,3,4}``.

    Raises:
        SpecError: Bad text, an option of the wrong type, or no pass at all.
        UnknownPassError: A name nobody registered.
    """

    __slots__ = ("passes",)

    passes: tuple[Pass, ...]

    def __init__(self, passes: str | Sequence[Pass]) -> None:
        found = parse(passes).passes if isinstance(passes, str) else tuple(map(_checked, passes))
        if not found:
            raise SpecError("the pipeline has no pass")
        self.passes = found

    @classmethod
    def from_toml(cls, source: str | Path) -> Pipeline:
        """Read the TOML form from a file, or from text; run options in it are checked and dropped."""
        from ovgraft.pipeline import toml  # which imports this module

        return (toml.load(source) if isinstance(source, Path) else toml.loads(source)).pipeline

    def to_toml(self) -> str:
        """The TOML form."""
        from ovgraft.pipeline import toml

        return toml.dumps(self)

    def run(
        self,
        graft: Graft,
        *,
        on_error: OnError = "stop",
        strict: bool = False,
        hooks: Sequence[Hook] = (),
        dry_run: bool = False,
    ) -> Report:
        """Run the passes on a graft, in place.

        Args:
            graft: What they edit. A pass that fails leaves it as the pass before left it.
            on_error: ``skip`` goes on after a failed pass, ``stop`` raises its error.
            strict: Prove by structural fingerprints that each pass changed something exactly when it says so.
            hooks: Observers, see :mod:`ovgraft.pipeline.hooks`.
            dry_run: Put the graft back as it was at the end.

        Returns:
            What happened. To have it after a failed pass too, call :func:`ovgraft.pipeline.execute`.

        Raises:
            OvgraftError: A pass failed under ``on_error="stop"``, or a model cannot be read; of a class that says why.
        """
        report = execute(self, graft, on_error=on_error, strict=strict, hooks=hooks, dry_run=dry_run)
        if report.error is not None:
            raise report.error
        return report

    def __str__(self) -> str:
        return ",".join(map(options.to_text, self.passes))

    def __repr__(self) -> str:
        return f"Pipeline({str(self)!r})"

    def __len__(self) -> int:
        return len(self.passes)

    def __iter__(self) -> Iterator[Pass]:
        return iter(self.passes)

    def __eq__(self, other: object) -> bool:
        return self.passes == other.passes if isinstance(other, Pipeline) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.passes)


def parse(text: str, lookup: Callable[[str], type[Pass]] = get_pass) -> Pipeline:
    """Read pipeline text; ``parse(str(pipeline)) == pipeline``.

    Args:
        text: For example ``annotate-hidden-states,expose-hidden-states{layers=1,3,4},move-fc``.
        lookup: Name -> pass class.

    Raises:
        SpecError: With the text and the place in it; ``error.caret()`` underlines it.
    """
    if not text.strip():
        raise SpecError("the pipeline has no pass", text=text, span=(0, 1), hint="`ovgraft passes` lists the passes")
    return Pipeline([_read(item, text, lookup) for item in spec.read_items(text)])


def _read(item: spec.Item, text: str, lookup: Callable[[str], type[Pass]]) -> Pass:
    try:
        cls = lookup(item.name)
    except SpecError as error:
        error.text, error.span = text, item.name_span
        raise
    return options.from_item(cls, item, text)


def _checked(item: Any) -> Pass:
    if not isinstance(item, Pass):
        raise TypeError(f"a pipeline is made of passes, got {item!r}")
    return options.checked(item)
