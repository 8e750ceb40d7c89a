"""Which block row is the first candidate? Read wrongly, a draft runs and next to nothing of it is accepted."""

from __future__ import annotations

import json

from ovgraft import drafts, ir
from ovgraft.checks.doctor.configs import contradiction
from ovgraft.checks.doctor.facts import DraftFacts, PairFacts
from ovgraft.checks.doctor.result import Answer, failed, not_applicable, passed, warned
from ovgraft.drafts.contract import Key, Port
from ovgraft.drafts.formats import Found, detect
from ovgraft.drafts.weight_source import open_weights
from ovgraft.errors import Reason
from ovgraft.ir.weights import weight_root

_FIELD = "candidate_position_offset"
_PER_ROW = "per_row"
_MEANS = {0: "the anchor's row is the first candidate", 1: "the anchor's row predicts nothing"}
_OUTPUTS = (Port.LAST_HIDDEN_STATE, Port.LOGITS, Port.DRAFT_TOKEN_IDS)
_FARTHEST = 64  # ops from an output back to where rows are cut


def offset(pair: PairFacts) -> Answer:
    """The offset is known, and graph, metadata and format mean the same one."""
    if pair.draft.family == "eagle3":
        return not_applicable("Eagle-3 drafts propose one row at a time")
    return _of_checkpoint(pair.draft) if pair.draft.checkpoint is not None else _of_ir(pair.draft)


def _of_checkpoint(draft: DraftFacts) -> Answer:
    """What the file says, against the convention of the format it is in."""
    assert draft.checkpoint is not None
    spec = draft.checkpoint.spec
    value, source = spec.candidate_position_offset, str(spec.sources.get(_FIELD, ""))
    convention = _convention(draft)
    numbers = {"offset": value, "convention": convention}
    if convention is not None and convention != value:
        text = (
            f"{source} says offset {value} ({_MEANS[value]}); checkpoints of this format mean {convention} "
            f"({_MEANS[convention]})"
        )
        advice = "if little is accepted this is why: remove the key. --run measures which of the two it is"
        return warned(text, advice, **numbers)
    return passed(f"{value}: {_MEANS[value]} ({source})", **numbers)


def _convention(draft: DraftFacts) -> int | None:
    """What the format always means."""
    assert draft.checkpoint is not None
    file = draft.package.folder / "config.json"
    found = Found(json.loads(file.read_bytes()), file, open_weights(draft.package.folder))
    form = detect(found)
    return form.candidate_position_offset(found, form.family(found))


def _of_ir(draft: DraftFacts) -> Answer:
    """What the metadata says, against the rows the graph gives."""
    assert draft.graph is not None
    model, graph = draft.package.model, draft.graph
    said = ir.get_text(model, Key.CANDIDATE_POSITION_OFFSET)
    cut = cut_rows(graph)
    nodes = () if cut is None else (Reason("anchor-row", f"drops {cut[1]} row", (graph.ref(cut[0]),)),)
    numbers = {"offset": said, "rows_cut": None if cut is None else cut[1]}
    advice = (
        f"write it once you know: set-rt-info{{model=draft key=dflash/{_FIELD} value=1}} (DFlash) or value=0 (DSpark)"
    )
    if said is None and cut is None:
        text = "nothing tells whether the anchor's row is a candidate: no metadata, and the graph drops no row"
        return failed(text, advice, **numbers)
    if said is None and cut is not None:
        return passed(f"{cut[1]}: the graph drops the anchor's row", *nodes, **numbers)
    if said not in ("0", "1"):
        return failed(f"rt_info dflash/{_FIELD} is '{said}', expected 0 or 1", advice, *nodes, **numbers)
    value = int(said)
    if (other := contradiction(draft, _FIELD, value)) is not None:
        text = f"metadata says offset {value} ({_MEANS[value]}), {other.text}"
        return warned(text, "--run measures which of the two it is", *nodes, **numbers)
    if ir.get_text(model, Key.INPUT_LAYOUT) == _PER_ROW:
        return passed(f"{value}: {_MEANS[value]}; all rows come out", *nodes, **numbers)
    rows = 0 if cut is None else cut[1]
    if rows != value:
        text = f"metadata says offset {value} ({_MEANS[value]}), the graph drops {rows} rows in front"
        return failed(text, "the runtime would take each candidate for its neighbour: export again", *nodes, **numbers)
    return passed(f"{value}: {_MEANS[value]}, in metadata and graph", *nodes, **numbers)


def cut_rows(graph: ir.Graph) -> tuple[int, int] | None:
    """The Slice on the way to an output that drops rows in front, and how many."""
    result = next((found for port in _OUTPUTS if (found := drafts.find_result(graph.model, port)) is not None), None)
    if result is None:
        return None
    node = graph.index(result)
    for _ in range(_FARTHEST):
        if graph.types[node] == "Slice" and (rows := _dropped(graph, node)):
            return node, rows
        sources = [i for i, _ in graph.inputs[node] if weight_root(graph.output(i)) is None]
        # a residual Add is where the backbone begins: no row is cut behind it
        if not sources or graph.types[node] in ("Parameter", "ReadValue", "ScaledDotProductAttention"):
            return None
        if graph.types[node] == "Add" and len(set(sources)) > 1 and graph.is_real(node):
            return None
        node = sources[0]
    return None


def _dropped(graph: ir.Graph, node: int) -> int:
    """Rows a Slice drops in front on axis 1; 0 when it does something else."""
    constants = [graph.nodes[i] for i, _ in graph.inputs[node][1:]]
    if len(constants) != 4 or any(c.get_type_name() != "Constant" or c.data.size != 1 for c in constants):
        return 0
    start, stop, step, axis = (int(constant.data.ravel()[0]) for constant in constants)
    return start if start > 0 and stop > 1 << 30 and step == 1 and axis in (1, -2) else 0
