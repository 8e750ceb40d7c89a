"""The Markov head beside a draft: rank, type and file, and whose it is."""

from __future__ import annotations

from pathlib import Path

import openvino as ov
from blake3 import blake3

from ovgraft import drafts
from ovgraft.checks.doctor.configs import contradiction, draft_config
from ovgraft.checks.doctor.facts import PairFacts
from ovgraft.checks.doctor.result import Answer, failed, not_applicable, passed, warned
from ovgraft.drafts import markov
from ovgraft.drafts.contract import FileName, Key
from ovgraft.drafts.spec import HeadType
from ovgraft.graft import Package

_AGAIN = "build it again from the draft's checkpoint: pack-markov-head"


def markov_head(pair: PairFacts) -> Answer:
    """Rank, type and file of the head agree, its ports keep the contract, its tables are not compressed."""
    draft = pair.draft
    if draft.checkpoint is not None:
        head = draft.checkpoint.spec.head
        if head.type is HeadType.NONE:
            return not_applicable("the draft has no Markov head")
        text = f"{head.type} head of rank {head.rank}"
        return passed(text, type=str(head.type), rank=head.rank, top_k=head.top_k)
    package = draft.package
    reasons = markov.package_reasons(package, pair.structure.lm_head.vocab_size)
    if reasons:
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return failed(f"{reasons[0].message}{more}", _AGAIN, *reasons)
    model = package.get(FileName.MARKOV_HEAD)
    if model is None:
        rank = draft_config(package, "markov_rank")[1]
        if rank and markov.read_advertised(package.model)[1] == 0:
            text = f"config.json speaks of a Markov head of rank {rank}; the IR does not and there is no head file"
            return warned(text, "run pack-markov-head on the checkpoint; without it tokens are the plain argmax")
        return not_applicable("the draft has no Markov head")
    facts = markov.read_facts(model)
    numbers: dict[str, object] = {"type": str(facts.type), "rank": facts.rank, "top_k": facts.top_k}
    if (other := contradiction(draft, "markov_rank", facts.rank)) is not None:
        return warned(f"the head has rank {facts.rank}, {other.text}", f"another draft's head? {_AGAIN}", **numbers)
    if _is_of_another_config(package, model):
        text = "the head was packed from another config.json than the one beside it"
        return warned(text, f"another draft's head lowers what is accepted; {_AGAIN}", **numbers)
    return passed(f"{facts.type} head of rank {facts.rank} over {facts.vocab_size} tokens", **numbers)


def _is_of_another_config(package: Package, head: ov.Model) -> bool:
    """Whether a head that was packed in its own folder now lies in that of another draft."""
    record = drafts.read_record(head, Key.MARKOV_HEAD_SOURCE) or {}
    config: Path = package.folder / "config.json"
    if record.get("checkpoint") != "." or not config.is_file():
        return False
    return record.get("config_blake3") != blake3(config.read_bytes()).hexdigest()
