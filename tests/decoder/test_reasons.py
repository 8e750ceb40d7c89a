"""The table of refusals in the docs is the table in the code."""

from __future__ import annotations

import inspect
import re

from ovgraft.decoder import embedding, layers, lm_head, read
from ovgraft.drafts import layers as draft_layers
from tests.support import ROOT


def test_every_code_is_documented() -> None:
    table = (ROOT / "docs" / "layers.md").read_text("utf-8")
    documented = {code for row in re.findall(r"^\| (`.*?) \|", table, re.M) for code in re.findall(r"`([a-z-]+)`", row)}
    sources = [inspect.getsource(module) for module in (embedding, layers, lm_head, read, draft_layers)]
    raised = {code for source in sources for code in re.findall(r'Reason\(\s*"([a-z-]+)"', source)}
    assert documented == raised
