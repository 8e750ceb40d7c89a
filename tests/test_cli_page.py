"""docs/cli.md says what the program says."""

from __future__ import annotations

from tests.cli_page import PAGE, page


def test_the_page_is_the_program() -> None:
    assert PAGE.read_text() == page(), "python -m tests.cli_page writes it"
