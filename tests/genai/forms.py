"""Every form a graft can take, run on every runtime at hand: the rows of docs/runtimes.md."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import openvino as ov

import ovgraft
from tests import agreeing, models, support
from tests.genai import apart, runtime

Family = Literal["dflash", "eagle3"]
Runtime = Literal["OpenVINO GenAI", "plain OpenVINO"]
CANDIDATES = 4
NEW_TOKENS = 40
LAYER_IDS: dict[Family, tuple[int, ...]] = {"dflash": (1, 3, 4), "eagle3": (2, 6, 9)}

EXPOSED = "annotate-hidden-states,expose-hidden-states"
MOVED = f"{EXPOSED},move-fc"


@dataclass(frozen=True, eq=False)
class Form:
    """One way to prepare a pair.

    Attributes:
        family: Of the draft.
        passes: Pipeline text; empty for the pair as it came.
        what: For people.
        refusals: Runtime -> a piece of its error message; a runtime not named here runs the form.
        foreign_names: The target's names follow no exporter's scheme and it has no annotation.
    """

    family: Family
    passes: str
    what: str
    refusals: dict[Runtime, str]
    foreign_names: bool = False

    @property
    def name(self) -> str:
        """Short, for test ids."""
        return f"{self.family}: {'foreign names, ' if self.foreign_names else ''}{self.passes or 'as exported'}"


_NO_HOST: dict[Runtime, str] = {"plain OpenVINO": "last_hidden_state"}
_TWO_OUTPUTS: dict[Runtime, str] = {"OpenVINO GenAI": "exactly one of 'last_hidden_state' or 'logits'"}
_NO_FC: dict[Runtime, str] = {"OpenVINO GenAI": "Failed to locate FC weights in eagle3 draft model"}

FORMS = (
    Form("dflash", "", "as exported, names no exporter uses", {"OpenVINO GenAI": "found 0 outputs", **_NO_HOST}, True),
    Form("dflash", "annotate-hidden-states", "annotated, names no exporter uses", _NO_HOST, True),
    Form("dflash", "", "as exported", _NO_HOST),
    Form("dflash", "annotate-hidden-states", "annotated (preset genai)", _NO_HOST),
    Form("dflash", EXPOSED, "states exposed", {"plain OpenVINO": "input_ids"}),
    Form("dflash", MOVED, "FC in the target", {"plain OpenVINO": "input_ids"}),
    Form("dflash", "attach-embedding", "embedding in the draft", _NO_HOST),
    Form("dflash", "attach-lm-head", "head in the draft", _NO_HOST),
    Form("dflash", "attach-embedding,attach-lm-head", "embedding and head in the draft", _NO_HOST),
    Form("dflash", f"{EXPOSED},attach-embedding,attach-lm-head", "states exposed, embedding and head in the draft", {}),
    Form("dflash", f"{MOVED},attach-embedding,attach-lm-head", "everything (preset dflash)", {}),
    Form(
        "dflash",
        f"{MOVED},attach-embedding,attach-lm-head{{keep-hidden=true}}",
        "everything, hidden state kept beside the logits",
        _TWO_OUTPUTS,
    ),
    Form("eagle3", "", "as exported", _NO_HOST),
    Form("eagle3", "annotate-hidden-states", "annotated (preset genai)", _NO_HOST),
    Form("eagle3", "expose-draft-hidden", "draft state exposed", _NO_HOST),
    Form(
        "eagle3",
        EXPOSED,
        "states exposed",
        {"OpenVINO GenAI": "m_ptr != nullptr", "plain OpenVINO": "last_hidden_state"},
    ),
    Form("eagle3", MOVED, "FC in the target", {**_NO_FC, "plain OpenVINO": "last_hidden_state"}),
    Form("eagle3", f"{MOVED},expose-draft-hidden", "everything (preset eagle3)", _NO_FC),
)


@dataclass(frozen=True)
class Pair:
    """Packages as an exporter would have left them, prompts, and what the target writes after them alone."""

    target: Path
    draft: Path
    prompts: list[list[int]]
    alone: runtime.Outcome


class Bench:
    """Builds pairs and forms below one folder, each once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pair: Callable[[Family, bool], Pair] = cache(self._pair)
        self.built: Callable[[Form], Path] = cache(self._built)

    def _pair(self, family: Family, foreign_names: bool) -> Pair:
        layers = 6 if family == "dflash" else 12
        target = agreeing.copying_target(layers, annotated=not foreign_names)
        if foreign_names:
            for index, node in enumerate(target.model.get_ordered_ops()):
                if node.get_type_name() != "Parameter":
                    node.set_friendly_name(f"op{index}")
        make = agreeing.dflash_draft if family == "dflash" else agreeing.eagle3_draft
        folder = self.folder / f"{family}{foreign_names}"
        config = {"model_type": "qwen3", "num_hidden_layers": layers}
        packages = [
            runtime.with_tokenizer(models.write_package(model, folder / role, config=config))
            for role, model in (("target", target.model), ("draft", make(target, LAYER_IDS[family])))
        ]
        prompts = target.prompts()[:5]
        alone = runtime.generate(runtime.pipeline(packages[0]), prompts, NEW_TOKENS)
        return Pair(packages[0], packages[1], prompts, alone)

    def _built(self, form: Form) -> Path:
        pair = self.pair(form.family, form.foreign_names)
        out = self.folder / f"form{FORMS.index(form)}"
        graft = ovgraft.load(target=pair.target, draft=pair.draft)
        if form.passes:
            ovgraft.Pipeline(form.passes).run(graft)
        graft.save(out)
        return out

    def run(self, form: Form, where: Runtime) -> runtime.Outcome:
        """Write with a form on a runtime; raises what the runtime raises."""
        pair = self.pair(form.family, form.foreign_names)
        folder = self.built(form)
        if where == "OpenVINO GenAI" and form.family == "eagle3":
            packages = (folder / "target", folder / "draft")
            return apart.generate(*packages, pair.prompts, NEW_TOKENS, assistant_tokens=CANDIDATES)
        if where == "OpenVINO GenAI":
            pipe = runtime.pipeline(folder / "target", folder / "draft")
            return runtime.generate(pipe, pair.prompts, NEW_TOKENS, assistant_tokens=CANDIDATES)
        host = runpy.run_path(str(support.ROOT / "samples" / "05_own_host.py"))["Host"](folder)
        results = [host.speculate(prompt, NEW_TOKENS, CANDIDATES) for prompt in pair.prompts]
        tokens = tuple(tuple(result.tokens) for result in results)
        return runtime.Outcome(tokens, sum(len(result.tokens) - 1 - result.calls for result in results))


RUNTIMES: dict[Runtime, str] = {
    "OpenVINO GenAI": runtime.genai.__version__.partition("-")[0],
    "plain OpenVINO": ov.get_version().partition("-")[0],
}
