"""``compress-weights``: matrices become int8 or int4, through NNCF."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ovgraft import decoder, ir
from ovgraft.errors import PostconditionError, PreconditionError, Reason, SpecError
from ovgraft.passbase import Context, Pass, option

if TYPE_CHECKING:
    from ovgraft.graft import Graft, Package
    from ovgraft.passbase import ModelRole

_BITS = {"int8": 8, "int4": 4}


@dataclass(frozen=True, kw_only=True)
class CompressWeights(Pass):
    """Compress the weight matrices of a draft or a target with NNCF (extra ovgraft[compress]).

    int8 has a scale and a zero point per row, int4 is symmetric with a scale per group. Norms, biases, convolution
    kernels and d2t stay as they are, and so does the Markov head. Tables and FC that were grafted from the other model
    stay the other model's: compress before grafting what is to be compressed.
    """

    name: ClassVar[str] = "compress-weights"

    mode: Literal["int8", "int4"] = option("int8", "what matrices become")
    group_size: int = option(64, "numbers that share a scale in int4; -1 for a whole row")
    all_layers: bool = option(True, "compress the embedding to int4 as well; else it becomes int8")
    lm_head: Literal["int8", "int4", "keep"] = option(
        "int8", "what an output layer of the model's own becomes, and an embedding tied to it"
    )
    model: Literal["draft", "target"] = option("draft", "which model of the graft to compress")

    def requires(self, graft: Graft) -> None:
        """The group size is one.

        Raises:
            SpecError: It is not.
        """
        if self.group_size != -1 and self.group_size < 2:
            raise SpecError(f"group-size is {self.group_size}", hint="a number of at least 2, or -1 for a whole row")

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Compress a clone and swap it in.

        Raises:
            PreconditionError: NNCF is not installed, rows cannot be cut into groups of this size, or a matrix is
                compressed already to more bits or other groups than asked for.
            PostconditionError: NNCF compressed something else than it was told.
        """
        role, package = self._package(graft)
        matrices = decoder.read_matrices(package.model)
        self._refuse_other_compression(matrices, package)
        plan = {matrix.index: bits for matrix in matrices if (bits := self._planned(matrix)) is not None}
        grafted = sum(matrix.grafted for matrix in matrices)
        if grafted:
            ctx.remark(f"{grafted} grafted weights stay as they are")
        smaller = sum(map(self._is_smaller, matrices))
        before = sum(matrix.weight.bytes for matrix in matrices if matrix.index in plan)
        done = sorted({matrix.weight.format for matrix in matrices if not matrix.grafted})
        del matrices
        if plan:
            clone = package.model.clone()
            after = decoder.compress(clone, plan, self.group_size)
            package.model = clone
            counts = ", ".join(
                f"{count} to {bits}"
                for bits in _BITS
                if (count := list(plan.values()).count(bits))  # type: ignore[arg-type]
            )
            ctx.note("replace", role, f"matrices compressed: {counts}; {before:,} bytes became {after:,}")
        else:
            ctx.remark(f"unchanged: no matrix is left to compress ({', '.join(done) or 'none of its own'})")
        if smaller:
            ctx.remark(f"{smaller} matrices have fewer bits than asked for: what was rounded does not come back")

    def ensures(self, graft: Graft) -> None:
        """No matrix of the model's own is left that should have been compressed.

        Raises:
            PostconditionError: One is.
        """
        _, package = self._package(graft)
        left = [m.node for m in decoder.read_matrices(package.model) if self._planned(m) is not None]
        if left:
            raise PostconditionError("a matrix is not compressed", node=ir.node_ref(left[0]))

    def _refuse_other_compression(self, matrices: list[decoder.Matrix], package: Package) -> None:
        """What was rounded once is not rounded again; fewer bits than asked for are left as they are."""
        reasons = []
        for matrix in matrices:
            wanted = self._wanted(matrix)
            if matrix.grafted or matrix.bits is None or wanted is None:
                continue
            groups = matrix.width if self.group_size == -1 else self.group_size
            if matrix.bits > _BITS[wanted]:
                text = f"stored in {matrix.bits} bits, {_BITS[wanted]} are asked for"
                reasons.append(Reason("other-bits", text, (ir.node_ref(matrix.node),)))
            elif wanted == "int4" and matrix.bits == _BITS[wanted] and matrix.group_size not in (None, groups):
                text = f"stored in groups of {matrix.group_size}, groups of {groups} are asked for"
                reasons.append(Reason("other-groups", text, (ir.node_ref(matrix.node),)))
        if reasons:
            raise PreconditionError(
                f"{len(reasons)} matrices are compressed already, otherwise than asked for",
                file=package.path,
                hint="start from the model before it was compressed",
                reasons=tuple(reasons),
            )

    def _is_smaller(self, matrix: decoder.Matrix) -> bool:
        wanted = self._wanted(matrix)
        return not matrix.grafted and wanted is not None and matrix.bits is not None and matrix.bits < _BITS[wanted]

    def _package(self, graft: Graft) -> tuple[ModelRole, Package]:
        role: ModelRole = graft.draft_role if self.model == "draft" else "target"
        return role, graft.package(role)

    def _planned(self, matrix: decoder.Matrix) -> Literal["int8", "int4"] | None:
        """What a matrix becomes; None when it stays."""
        if matrix.grafted or matrix.weight.format not in decoder.FLOAT_FORMATS:
            return None
        return self._wanted(matrix)

    def _wanted(self, matrix: decoder.Matrix) -> Literal["int8", "int4"] | None:
        """What a matrix of the model's own is to be; None when that does not matter."""
        if matrix.role == "lm_head":
            return None if self.lm_head == "keep" else self.lm_head
        if matrix.role == "embedding" and not self.all_layers:
            return "int8"
        return self.mode
