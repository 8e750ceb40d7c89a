"""Which runtime takes which form, with accepted tokens for every form called working."""

from __future__ import annotations

import pytest

from tests import support
from tests.genai import runtimes_page
from tests.genai.forms import FORMS, RUNTIMES, Bench, Form, Runtime

pytestmark = pytest.mark.genai


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("forms"))


@pytest.mark.parametrize("where", RUNTIMES)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_form(form: Form, where: Runtime, bench: Bench) -> None:
    pair = bench.pair(form.family, form.foreign_names)
    if where in form.refusals:
        with pytest.raises((RuntimeError, KeyError)) as refused:
            bench.run(form, where)
        assert form.refusals[where] in str(refused.value)
        return
    outcome = bench.run(form, where)
    assert outcome.tokens == pair.alone.tokens
    assert outcome.tokens_per_step > (3.5 if form.family == "dflash" else 2.0)


def test_page_says_what_was_run() -> None:
    page = (support.ROOT / "docs" / "runtimes.md").read_text(encoding="utf-8")
    assert runtimes_page.verdicts(page) == runtimes_page.expected()
