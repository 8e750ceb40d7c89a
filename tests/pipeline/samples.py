"""Passes and models the pipeline tests run: each pass does one thing, right or wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ovgraft import ir
from ovgraft.errors import PostconditionError, PreconditionError, UnknownPassError
from ovgraft.graft import load
from ovgraft.passbase import Context, Pass, option

if TYPE_CHECKING:
    from ovgraft.graft import Graft


@dataclass(frozen=True, kw_only=True)
class Everything(Pass):
    """Has an option of every type and changes nothing."""

    name: ClassVar[str] = "everything"

    flag: bool = option(False, "a flag")
    count: int = option(3, "a number")
    ratio: float = option(1.0, "a ratio")
    word: str = option("x", "a word")
    maybe: str | None = option("some", "a word or none")
    max_bytes: int = option(1 << 20, "a size", unit="bytes")
    mode: Literal["fast", "slow"] = option("fast", "a choice")
    layers: tuple[int, ...] | None = option(None, "layer ids", example="1,3,4")
    words: tuple[str, ...] = option((), "words")
    which: Literal["all"] | int = option("all", "a choice or a number")
    pair: tuple[int, float] = option((1, 2.0), "two numbers")
    folder: Path | None = field(default=None, metadata={"help": "a folder"})

    def apply(self, graft: Graft, ctx: Context) -> None:
        ctx.remark("nothing to do")


@dataclass(frozen=True, kw_only=True)
class Label(Pass):
    """Give an output of the target one more name."""

    name: ClassVar[str] = "label"

    to: str = option("labelled", "the name")
    folder: Path | None = field(default=None, metadata={"help": "ignored"})

    def requires(self, graft: Graft) -> None:
        if self.to in graft.target.model.output(0).get_names():
            raise PreconditionError(f"there is an output {self.to}")

    def apply(self, graft: Graft, ctx: Context) -> None:
        output = graft.target.model.output(0)
        output.set_names({*output.get_names(), self.to})
        ctx.note("update", "target", f"output named {self.to}", ir.node_ref(output.get_node()))

    def ensures(self, graft: Graft) -> None:
        if self.to not in graft.target.model.output(0).get_names():
            raise PostconditionError("the name is missing")


@dataclass(frozen=True, kw_only=True)
class Break(Pass):
    """Label the output, then go wrong at one stage."""

    name: ClassVar[str] = "break"

    at: Literal["requires", "apply", "validate", "ensures", "bug", "file", "interrupt"] = option(
        "apply", "where to fail"
    )

    def requires(self, graft: Graft) -> None:
        if self.at == "requires":
            raise PreconditionError("not ready", expected="a", found="b")

    def apply(self, graft: Graft, ctx: Context) -> None:
        Label(to="half done").apply(graft, ctx)
        if self.at == "apply":
            raise PreconditionError("changed my mind")
        if self.at == "bug":
            raise KeyError("layers.3")
        if self.at == "file":
            raise PermissionError(13, "Permission denied", "side.json")
        if self.at == "interrupt":
            raise KeyboardInterrupt
        if self.at == "validate":
            product = next(op for op in graft.target.model.get_ops() if op.get_type_name() == "MatMul")
            product.input(1).replace_source_output(ops.constant(np.ones((5, 2), np.float32)).output(0))

    def ensures(self, graft: Graft) -> None:
        if self.at == "ensures":
            raise PostconditionError("promise not kept")


@dataclass(frozen=True, kw_only=True)
class Lie(Pass):
    """Change without telling, or tell without changing."""

    name: ClassVar[str] = "lie"

    about: Literal["nothing", "structure", "metadata"] = option("structure", "what is not told")

    def apply(self, graft: Graft, ctx: Context) -> None:
        if self.about == "nothing":
            ctx.note("add", "target", "great things")
        if self.about == "structure":
            Label().apply(graft, Context())
        if self.about == "metadata":
            ir.set_text(graft.target.model, ("secret",), "1")


@dataclass(frozen=True, kw_only=True)
class NeedsDraft(Pass):
    """Mark the draft's metadata."""

    name: ClassVar[str] = "needs-draft"
    needs_draft: ClassVar[bool] = True

    def apply(self, graft: Graft, ctx: Context) -> None:
        ir.set_text(graft.package("draft").model, ("mark",), "1")
        ctx.note("metadata", "draft", "rt_info mark = 1")


PASSES: dict[str, type[Pass]] = {cls.name: cls for cls in (Everything, Label, Break, Lie, NeedsDraft)}


def lookup(name: str) -> type[Pass]:
    """The registry of these tests."""
    if name not in PASSES:
        raise UnknownPassError(f"unknown pass '{name}'")
    return PASSES[name]


def tiny_model() -> ov.Model:
    """``y = relu(x @ w)``; x is f32 ``[?, 3]``, ``unused`` feeds nothing."""
    x = ops.parameter([-1, 3], np.float32, name="x")
    unused = ops.parameter([-1], np.int64, name="unused")
    for parameter in (x, unused):
        parameter.output(0).set_names({parameter.get_friendly_name()})
    weight = ops.constant(np.arange(12, dtype=np.float32).reshape(3, 4) - 6)
    weight.set_friendly_name("w")
    product = ops.matmul(x, weight, False, False)
    product.set_friendly_name("layers.0/up")
    product.output(0).set_names({"up"})
    relu = ops.relu(product)
    relu.set_friendly_name("act")
    relu.output(0).set_names({"y"})
    result = ops.result(relu)
    result.set_friendly_name("y")
    return ov.Model([result], [x, unused], "tiny")


def tiny_graft(folder: Path, *, draft: bool = False) -> Graft:
    """A graft of tiny models in ``folder/target`` and ``folder/draft``."""
    for role in ("target", "draft") if draft else ("target",):
        (folder / role).mkdir(parents=True)
        ov.save_model(tiny_model(), folder / role / "openvino_model.xml", compress_to_fp16=False)
    return load(target=folder / "target", draft=folder / "draft" if draft else None)
