"""``python -m ovgraft``, and the ``ovgraft`` script."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line and exit."""
    try:
        from ovgraft.cli import interrupts

        interrupts.install()
        from ovgraft.cli.main import main

        main()
    except KeyboardInterrupt:  # while modules were imported; later ones are told by the command line itself
        sys.exit(130)


if __name__ == "__main__":
    run()
