"""Weight compression with NNCF: which matrices of a decoder or draft become what, and the proof that no other did.

NNCF chooses by its own rules unless told otherwise: of a headless draft it spares the last product, which is no output
layer. So the plan is made here and NNCF is told what to leave alone; afterwards every weight is looked at.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import openvino as ov

from ovgraft.decoder.embedding import read_embedding
from ovgraft.decoder.lm_head import read_lm_head
from ovgraft.drafts.contract import WEIGHT_DIGEST_KEY, Port, RtPath
from ovgraft.errors import PostconditionError, PreconditionError, Reason, StructureError
from ovgraft.ir.graph import Graph
from ovgraft.ir.refs import node_ref
from ovgraft.ir.rtinfo import delete, get_user_data
from ovgraft.ir.weights import WeightSubgraph, weight_root

Bits = Literal["int8", "int4"]
Role = Literal["lm_head", "embedding", "layer"]

FLOAT_FORMATS = ("f32", "f16", "bf16")
"""Formats that can be compressed."""

_STORED: dict[Bits, tuple[str, ...]] = {"int8": ("u8", "i8"), "int4": ("u4", "i4")}
_TOKENS = {Port.INPUT_IDS, "input"}
_NAMES_ARE_UNIQUE: RtPath = ("nncf", "friendly_names_were_updated")  # NNCF's own record; it believes it ever after
_COMPRESSIBLE = frozenset({"MatMul", "Gather", "Convolution", "GroupConvolution", "LSTMSequence", "GRUSequence"})


@dataclass(frozen=True)
class Matrix:
    """A weight that could be compressed.

    Attributes:
        node: The op that computes with it.
        index: Its number in topological order, the same in a clone.
        role: ``lm_head``, ``embedding`` or ``layer``.
        width: Numbers a row is summed over, which groups divide.
        weight: How it is stored.
        grafted: It came from another model and a digest of it is on record.
    """

    node: ov.Node
    index: int
    role: Role
    width: int
    weight: WeightSubgraph
    grafted: bool

    @property
    def reader(self) -> str:
        """Friendly name of the op, for people: another one may be called the same."""
        return str(self.node.get_friendly_name())

    @property
    def bits(self) -> int | None:
        """Bits of a stored number; None when it is not compressed."""
        width = int(self._stored.get_output_element_type(0).bitwidth)
        return width if width <= 8 else None

    @property
    def group_size(self) -> int | None:
        """Numbers that share a scale, the whole row's when that has one; None without a scale."""
        floats = [each for each in self.weight.constants if each.get_output_element_type(0).is_real()]
        scales = [each for each in floats if each is not self._stored]
        return _count(self._stored) // max(map(_count, scales)) if scales else None

    @property
    def _stored(self) -> ov.Node:
        return max(self.weight.constants, key=_count)


def _count(constant: ov.Node) -> int:
    return prod(constant.get_output_shape(0))


def read_matrices(model: ov.Model) -> list[Matrix]:
    """All weight matrices of a model: second inputs of MatMul, and the token embedding.

    Tables of another kind (positions, frequencies, convolution kernels) and vectors (norms, biases) are none.
    """
    graph = Graph(model)
    special = _special(model, graph)
    found = []
    for i, kind in enumerate(graph.types):
        role: Role = special.get(i, "layer")
        if kind == "MatMul":
            port, transposed = 1, bool(graph.nodes[i].get_attributes().get("transpose_b"))
        elif kind == "Gather" and i in special:
            port, transposed = 0, True
        else:
            continue
        root = weight_root(graph.nodes[i].input_value(port))
        shape = None if root is None else root.output.get_shape()
        if root is None or shape is None or len(shape) < 2 or min(shape[-2:]) < 2:
            continue
        width = int(shape[-1] if transposed else shape[-2])
        grafted = any(get_user_data(node, WEIGHT_DIGEST_KEY) is not None for node in root.nodes)
        found.append(Matrix(graph.nodes[i], i, role, width, root, grafted))
    return found


def compress(model: ov.Model, plan: Mapping[int, Bits], group_size: int) -> int:
    """Compress a model in place: int8 asymmetric per row, int4 symmetric in groups.

    Args:
        model: Changed also when this fails: hand in a clone.
        plan: ``index`` of a matrix -> what it becomes. Everything else stays as it is.
        group_size: Numbers that share a scale in int4; -1 for a whole row.

    Returns:
        Bytes of the planned matrices as they are stored now.

    Raises:
        PreconditionError: NNCF is not installed, or rows cannot be cut into such groups.
        PostconditionError: NNCF did something else.
    """
    nncf = _nncf()
    matrices = read_matrices(model)
    _check_groups(matrices, plan, group_size)
    before = [_Before(matrix.node, plan.get(matrix.index), matrix.weight.format) for matrix in matrices]
    bits_of = {id(each.node): each.bits for each in before}
    others = [(node, node.get_friendly_name()) for node in _others(model, matrices)]
    del matrices  # it holds nodes that NNCF replaces
    modes: dict[Bits, dict[str, Any]] = {
        "int8": {"mode": nncf.CompressWeightsMode.INT8_ASYM},
        "int4": {
            "mode": nncf.CompressWeightsMode.INT4_SYM,
            "group_size": group_size,
            "all_layers": True,
            "ratio": 1.0,
        },
    }
    with _unique_names(model), _quiet():
        for bits, options in modes.items():  # int4 last: the record NNCF leaves in rt_info is that of the last call
            if bits not in plan.values():
                continue
            ignored = [
                node.get_friendly_name()
                for node in model.get_ordered_ops()
                if node.get_type_name() in _COMPRESSIBLE and bits_of.get(id(node)) != bits
            ]
            scope = nncf.IgnoredScope(names=sorted(ignored), validate=False)
            nncf.compress_weights(model, ignored_scope=scope, **options)
        model.validate_nodes_and_infer_types()
        matrices = read_matrices(model)
        planned = [matrix for matrix in matrices if bits_of.get(id(matrix.node)) is not None]
        _name_new_nodes(planned)
    _check_done(before, matrices)
    kept = {id(node) for node in _others(model, matrices)}
    touched = sorted(name for node, name in others if id(node) not in kept)
    if touched:
        raise PostconditionError("NNCF changed constants that are no matrices", found=", ".join(touched))
    return sum(matrix.weight.bytes for matrix in planned)


@dataclass(frozen=True)
class _Before:
    """A matrix before NNCF ran: its reader, what it is to become (None: it stays), how it was stored."""

    node: ov.Node
    bits: Bits | None
    format: str


@contextlib.contextmanager
def _unique_names(model: ov.Model) -> Iterator[None]:
    """NNCF knows nodes by their friendly names, which OpenVINO lets repeat; repeated ones are numbered for its time."""
    nodes = model.get_ordered_ops()
    counts = Counter(node.get_friendly_name() for node in nodes)
    given: dict[str, str] = {}
    for i, node in enumerate(nodes):
        name = unique = node.get_friendly_name()
        if counts[name] > 1:
            while unique in counts or unique in given:
                unique = f"{unique}#{i}"
            given[unique] = name
            node.set_friendly_name(unique)
    try:
        yield
    finally:
        for node in model.get_ordered_ops():  # new constants have the names of those they replace
            if node.get_friendly_name() in given:
                node.set_friendly_name(given[node.get_friendly_name()])
        if given:
            delete(model, _NAMES_ARE_UNIQUE)


def _special(model: ov.Model, graph: Graph) -> dict[int, Role]:
    """Index of the op that reads the embedding or the output layer's weight; a tied table is the output layer's."""
    embedding = head = None
    if {name for parameter in model.get_parameters() for name in parameter.output(0).names} & _TOKENS:
        with contextlib.suppress(StructureError):
            embedding = read_embedding(model)
    if any(Port.LOGITS in result.output(0).names for result in model.get_results()):
        with contextlib.suppress(StructureError):
            head = read_lm_head(model, graph)
    found: dict[int, Role] = {}
    if head is not None:
        found[graph.index(head.matmul)] = "lm_head"
    if embedding is not None:
        tied = head is not None and bool(_constants(head.weight) & _constants(embedding.table))
        found[graph.index(embedding.gather)] = "lm_head" if tied else "embedding"
    return found


def _constants(output: ov.Output) -> set[int]:
    """Addresses of the constants above an output."""
    root = weight_root(output)
    return set() if root is None else {id(constant) for constant in root.constants}


def _check_groups(matrices: list[Matrix], plan: Mapping[int, Bits], group_size: int) -> None:
    bad = [
        matrix
        for matrix in matrices
        if plan.get(matrix.index) == "int4" and group_size > 0 and matrix.width % group_size
    ]
    if not bad:
        return
    fits = 1
    while all(matrix.width % (2 * fits) == 0 for matrix in bad):
        fits *= 2
    reasons = tuple(
        Reason(
            "group-size",
            f"{matrix.reader} sums over {matrix.width} numbers, no multiple of {group_size}",
            (node_ref(matrix.node),),
        )
        for matrix in bad
    )
    hint = f"group-size={fits} divides them all" if fits >= 16 else "say group-size=-1 for one scale a row"
    raise PreconditionError(
        f"{len(bad)} matrices cannot be cut into groups of {group_size}", reasons=reasons, hint=hint
    )


def _check_done(before: list[_Before], matrices: list[Matrix]) -> None:
    found = {id(matrix.node): matrix.weight.format for matrix in matrices}
    wrong = []
    for each in before:
        wanted = (each.format,) if each.bits is None else _STORED[each.bits]
        if found.get(id(each.node)) not in wanted:
            text = f"expected {' or '.join(wanted)}, found {found.get(id(each.node), 'nothing')}"
            wrong.append(Reason("not-as-planned", text, (node_ref(each.node),)))
    if wrong:
        raise PostconditionError(f"NNCF left {len(wrong)} weights otherwise than planned", reasons=tuple(wrong))


def _others(model: ov.Model, matrices: list[Matrix]) -> list[ov.Node]:
    """Every constant that is no part of a matrix: norms, biases, maps, tables, shapes."""
    parts = {id(constant) for matrix in matrices for constant in matrix.weight.constants}
    return [node for node in model.get_ordered_ops() if node.get_type_name() == "Constant" and id(node) not in parts]


def _name_new_nodes(matrices: list[Matrix]) -> None:
    """Name what NNCF left to a process counter, so that equal inputs give equal files."""
    for matrix in matrices:
        unnamed = [node for node in matrix.weight.nodes if node.get_friendly_name() == node.get_name()]
        for place, node in enumerate(unnamed):
            node.set_friendly_name(f"{matrix.reader}/weight/{node.get_type_name()}_{place}")


def _nncf() -> Any:
    try:
        import nncf
    except ImportError as error:
        raise PreconditionError(
            "compressing weights needs NNCF, which is not installed", hint="pip install 'ovgraft[compress]'"
        ) from error
    return nncf


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """NNCF prints tables and progress bars; passes do not."""
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
