"""Write docs/runtimes.md by running every form: ``python -m tests.genai.runtimes_page``."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests import support
from tests.genai.forms import CANDIDATES, FORMS, NEW_TOKENS, RUNTIMES, Bench, Form, Runtime

_TITLE = f"""# Which runtime takes which form

Every form was run on every runtime: small pairs that agree for a reason (`tests/agreeing.py`), CPU, f32,
{CANDIDATES} candidates a step, {NEW_TOKENS} new tokens a prompt. A number is tokens per target call, with text equal to
the target alone; 1.0 would be no draft at all. `tests/genai/test_forms.py` runs the same forms and asserts the same;
`python -m tests.genai.runtimes_page` writes this page.
"""

_NOTES = """
- OpenVINO GenAI exposes the states, moves the FC and attaches embedding and head in memory when it loads a pair, so the
  annotation is all it needs, and `--preset genai` writes nothing else. It takes a DFlash pair in which part or all of
  that work is already done.
- It takes an Eagle-3 pair only as exported, annotated or not: it looks for the FC inside the draft, and a target that
  already has an output `last_hidden_state` ends in a null tensor. Eagle-3 targets need ten layers or more.
- On the CPU its Eagle-3 pipelines now and then die at the first `generate()` or accept nothing, with any draft
  (openvino.genai issue 4425, open). A new pipeline with the same files is fine; these rows were run in processes of
  their own.
- A draft with both `logits` and `last_hidden_state` is for hosts with a Markov head; GenAI refuses it.
- "plain OpenVINO" is `samples/05_own_host.py`: a host that compiles the two IRs and runs them by their port names.
"""


def measured(bench: Bench, form: Form, where: Runtime) -> str:
    """A table cell."""
    try:
        outcome = bench.run(form, where)
    except (RuntimeError, KeyError) as refusal:
        said = form.refusals.get(where)
        if said is None or said not in str(refusal):
            raise
        return "no" if where == "plain OpenVINO" else f"no: “{said}”"
    pair = bench.pair(form.family, form.foreign_names)
    assert outcome.tokens == pair.alone.tokens
    return f"yes, {outcome.tokens_per_step:.2f}"


def page(bench: Bench) -> str:
    """The whole page."""
    columns = [f"{name} {version}" for name, version in RUNTIMES.items()]
    lines = [_TITLE, f"| draft | form | passes | {' | '.join(columns)} |", "|---|---|---|" + "---|" * len(columns)]
    for form in FORMS:
        cells = [measured(bench, form, where) for where in RUNTIMES]
        passes = f"`{form.passes}`" if form.passes else "none"
        lines.append(f"| {form.family} | {form.what} | {passes} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" + _NOTES


def verdicts(text: str) -> list[tuple[str, ...]]:
    """What a page says, numbers and quotations left out: form, passes, yes or no per runtime."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith(("| dflash", "| eagle3"))]
    return [tuple(cell.strip() if i < 3 else cell.split()[0].strip(",:") for i, cell in enumerate(row)) for row in rows]


def expected() -> list[tuple[str, ...]]:
    """What a page must say."""
    return [
        (
            form.family,
            form.what,
            f"`{form.passes}`" if form.passes else "none",
            *("no" if where in form.refusals else "yes" for where in RUNTIMES),
        )
        for form in FORMS
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        (support.ROOT / "docs" / "runtimes.md").write_text(page(Bench(Path(folder))), encoding="utf-8")
