"""Observers of a run: timing, sizes, numeric check, dumps, progress, reproducer. Passes and the loop know none of them.

``before_pass`` goes through the hooks in order, ``after_pass`` and ``after_failure`` in reverse, so the first hook
encloses the others. An error raised by ``before_pass`` or ``after_pass`` fails the pass, which is then rolled back.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ovgraft.errors import OvgraftError
from ovgraft.passbase import Context, Pass
from ovgraft.pipeline.report import Size, SizeTable

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.graft import Graft, Snapshot


@dataclass(slots=True)
class PassRun:
    """One pass on its way through a run; what hooks look at and write their measurements into.

    Attributes:
        position: 1 for the first pass.
        total: Number of passes in the pipeline.
        item: The pass.
        spec: Its text form.
        remaining: Text of the pipeline from this pass on.
        graft: What it edits; in ``after_failure`` rolled back already.
        context: What it said so far.
        snapshot: The graft before ``apply``; None until ``requires`` has passed.
        seconds: Written by :class:`Timing`.
        verify_seconds: Written by :class:`Verify`.
        before: Written by :class:`Sizes`.
        after: Written by :class:`Sizes`.
        dump: Written by :class:`Dump`.
    """

    position: int
    total: int
    item: Pass
    spec: str
    remaining: str
    graft: Graft
    context: Context = field(default_factory=Context)
    snapshot: Snapshot | None = None
    seconds: float | None = None
    verify_seconds: float | None = None
    before: SizeTable = field(default_factory=dict)
    after: SizeTable = field(default_factory=dict)
    dump: str | None = None

    @property
    def label(self) -> str:
        """Folder name for what is written about this pass, for example ``03-move-fc``."""
        return f"{self.position:02d}-{self.item.name}"


class Hook:
    """Base of all hooks; each method does nothing."""

    def before_pass(self, run: PassRun) -> None:
        """Called before ``requires``."""

    def after_pass(self, run: PassRun) -> None:
        """Called when the pass kept its promise; what it changed stands."""

    def after_failure(self, run: PassRun, error: OvgraftError) -> None:
        """Called when the pass failed and was rolled back. What this raises becomes a remark."""


class Timing(Hook):
    """Measures each pass, the hooks after this one included."""

    def __init__(self) -> None:
        self._start = 0.0

    def before_pass(self, run: PassRun) -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def after_pass(self, run: PassRun) -> None:
        """Stop the clock."""
        run.seconds = time.perf_counter() - self._start

    def after_failure(self, run: PassRun, error: OvgraftError) -> None:
        """Stop the clock."""
        self.after_pass(run)


class Sizes(Hook):
    """Counts nodes and weight bytes before and after each pass.

    A walk over all ops, a quarter of what cloning them takes; models are counted again only after structural edits.
    """

    def __init__(self) -> None:
        self._known: SizeTable = {}

    def before_pass(self, run: PassRun) -> None:
        """Forget what was counted in an earlier run."""
        if run.position == 1:
            self._known = {}

    def after_pass(self, run: PassRun) -> None:
        """Count."""
        earlier = {} if run.snapshot is None else run.snapshot.models
        run.before = _sizes(earlier, self._known)
        rewritten = any(edit.kind != "metadata" for edit in run.context.edits)
        models = {role: package.models for role, package in run.graft.packages.items()}
        run.after = self._known = _sizes(models, {} if rewritten else run.before)


class Verify(Hook):
    """Compares numbers after each pass that changed something.

    Args:
        check: Called with the graft before and after the pass; raises
            :class:`~ovgraft.errors.MismatchError` when what must not change did. Only models of the snapshot have a
            "before": others were read or made by the pass.
    """

    def __init__(self, check: Callable[[Snapshot, Graft], object]) -> None:
        self._check = check

    def after_pass(self, run: PassRun) -> None:
        """Run the check."""
        if run.snapshot is None or not run.context.edits:
            return
        start = time.perf_counter()
        try:
            self._check(run.snapshot, run.graft)
        finally:
            run.verify_seconds = time.perf_counter() - start


class Dump(Hook):
    """Saves the graft after passes, each into a folder of its own.

    Args:
        folder: Where; made when missing. Dumps of an earlier run are replaced.
        when: After passes that changed something, or after all.
    """

    def __init__(self, folder: Path, when: Literal["changed", "all"] = "changed") -> None:
        self._folder = folder
        self._when = when

    def after_pass(self, run: PassRun) -> None:
        """Save the graft."""
        if self._when == "all" or run.context.edits:
            save_graft(run.graft, self._folder / run.label)
            run.dump = run.label


class Progress(Hook):
    """Tells how far the run is.

    Args:
        callback: Called as ``callback(run, done, total, what)``: with zeros when a pass begins, then whenever the
            pass reports.
    """

    def __init__(self, callback: Callable[[PassRun, int, int, str], None]) -> None:
        self._callback = callback

    def before_pass(self, run: PassRun) -> None:
        """Announce the pass and listen to it."""
        run.context.progress = lambda done, total, what: self._callback(run, done, total, what)
        self._callback(run, 0, 0, "")


class Reproducer(Hook):
    """On failure writes the graft as the failed pass met it, the rest of the pipeline, and the command to rerun it.

    Args:
        folder: Where; made when missing. The files of one failure lie in a folder named after the pass:
            ``graft/``, ``pipeline.txt`` and ``command.txt``, the command to be run from within.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def after_failure(self, run: PassRun, error: OvgraftError) -> None:
        """Write the files."""
        place = self._folder / run.label
        with _whole(place):
            saved = save_graft(run.graft, place / "graft").relative_to(place)
            pair = ["--target", str(saved / "target"), "--draft", str(saved / "draft")]
            models = [str(saved)] if run.graft.draft is None else pair
            command = shlex.join(["ovgraft", "apply", *models, "-p", run.remaining, "--dry-run"])
            (place / "pipeline.txt").write_text(f"{run.remaining}\n", encoding="utf-8")
            (place / "command.txt").write_text(f"{command}\n", encoding="utf-8")
        run.context.remark(f"reproducer written: {run.label}")


def _sizes(models: Mapping[Any, Mapping[str, ov.Model]], known: SizeTable) -> SizeTable:
    """Sizes of models by role and name; those in ``known`` are not counted again."""
    from openvino.op import Constant

    sizes = dict(known)
    for role, named in models.items():
        for name, model in named.items():
            if (key := f"{role}/{name}") not in sizes:
                ops = model.get_ordered_ops()  # half the time of get_ops
                sizes[key] = Size(len(ops), sum(op.get_byte_size() for op in ops if type(op) is Constant))
    return sizes


def save_graft(graft: Graft, folder: Path) -> Path:
    """Save into a folder whatever the graft was loaded from; replaces what an earlier run left there.

    Returns:
        The path to load it by: the folder, or the .xml in it.
    """
    single = graft.draft is None and graft.target.kind == "xml"
    with _whole(folder if single else folder.parent):
        out = folder / graft.target.path.name if single else folder
        graft.save(out, force=True)
        return out


@contextlib.contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """Make a folder and those around it; what was made goes again, with all that is in it, when the body fails."""
    absent = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        if absent:
            shutil.rmtree(absent[-1], ignore_errors=True)
        raise
