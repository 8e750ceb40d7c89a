"""SDPA = per-row: the form that PagedAttention can page, against the form the exporter wrote."""

from __future__ import annotations

import numpy as np
import openvino as ov

from ovgraft import passes
from ovgraft.checks.doctor.facts import PairFacts
from ovgraft.checks.doctor.result import Answer, failed, not_applicable, passed
from ovgraft.checks.feeds import Call, FeedMaker
from ovgraft.checks.grafts import graft_of
from ovgraft.checks.hosts import PagedHost
from ovgraft.checks.ports import by_name
from ovgraft.checks.run import Runner
from ovgraft.checks.speculate import rows_cut
from ovgraft.drafts import read_draft
from ovgraft.drafts.contract import Port
from ovgraft.errors import PassError
from ovgraft.graft import Graft
from ovgraft.passbase import Context

ROUNDS = ((20, 5), (3, 5), (1, 5))
"""Context and block rows of each call: the states carry over, the block rows must not."""

_LIMIT = 1e-4  # other kernels sum in another order; relative to the largest number


def per_row(graft: Graft, pair: PairFacts, device: str) -> Answer:
    """Run the draft in both forms over a few blocks.

    Args:
        graft: The pair; its draft is an IR in the SDPA form.
        pair: Facts of the pair.
        device: OpenVINO device.
    """
    if pair.draft.family == "eagle3":
        return not_applicable("Eagle-3 drafts take one row per token as they are")
    if Port.TOKEN_TYPE_IDS in by_name(graft.package("draft").model.inputs):
        return not_applicable("the draft is in the per-row form, and there is no other to hold it against")
    try:
        paged = _paged(graft, pair)
    except PassError as error:
        return Answer("not-applicable", f"the draft has no per-row form: {error}", error.reasons)
    draft = read_draft(graft.package("draft"))
    sdpa, cut = Runner(draft.model, "the draft", device=device), rows_cut(draft)
    feeds = FeedMaker([draft.model])
    names = [name for name in by_name(draft.model.outputs) if name != Port.D2T]
    host = PagedHost(paged, "the draft's per-row form", device=device)
    past, largest, distance = 0, 0.0, 0.0
    for context, block in ROUNDS:
        call = Call("block", past, block, context)
        made = feeds.feeds(call)
        expected = sdpa.run(made)
        past += context
        found = host.run(made)
        for name in names:
            wanted, got = expected[name][0].astype(np.float64), found[name][0, cut:].astype(np.float64)
            if wanted.shape != got.shape:
                return failed(f"{name} is {list(wanted.shape)} in one form and {list(got.shape)} in the other", _ADVICE)
            largest = max(largest, float(np.abs(wanted).max()))
            # Python's max would pass over NaN
            distance = float(np.maximum(distance, np.abs(wanted - got).max()))
    numbers = {"max_abs": distance, "largest": largest, "limit": _LIMIT * max(1.0, largest)}
    if not distance <= _LIMIT * max(1.0, largest):
        return failed(f"the two forms differ by {distance:.3g} (numbers up to {largest:.3g})", _ADVICE, **numbers)
    return passed(f"SDPA and paged per-row form agree to {distance:.1g}", **numbers)


_ADVICE = "use the SDPA form, and report the draft: a mask or a window is not understood"


def _paged(graft: Graft, pair: PairFacts) -> ov.Model:
    """The paged per-row form of the draft."""
    if pair.draft.checkpoint is not None:
        other = graft_of(pair.graft.snapshot(), pair.graft)
        passes.BuildDraft(form="per-row").apply(other, Context())
    else:
        other = graft_of(graft.snapshot(), graft)
        passes.PerRowDraft().apply(other, Context())
    other.package("draft").model.validate_nodes_and_infer_types()
    passes.PagedAttention(model="draft").apply(other, Context())
    return other.package("draft").model
