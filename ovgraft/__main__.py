"""``python -m ovgraft``."""

from __future__ import annotations

from ovgraft.cli.main import main

main()
