"""The config.json beside the IRs: hosts read it, so it must stay true when a pass changes what it speaks of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ovgraft.errors import ModelFileError

if TYPE_CHECKING:
    from ovgraft.ir.files import Stamp

CONFIG_FILE = "config.json"


class ConfigFile:
    """config.json of a package, read when asked for.

    Attributes:
        path: The file, whether it exists or not.
        changed: What it shall say; None while it stays as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed: dict[str, Any] | None = None
        self._read: dict[str, Any] | None = None
        self._stamp: Stamp | None = None

    @property
    def content(self) -> dict[str, Any]:
        """What it says; {} when there is none.

        Raises:
            ModelFileError: It is not a JSON object.
        """
        if self.changed is not None:
            return self.changed
        if self._read is None:
            self._read = self._load()
        return self._read

    def _load(self) -> dict[str, Any]:
        from ovgraft.ir.files import stamp

        if not self.path.is_file():
            return {}
        self._stamp = stamp(self.path)
        try:
            data = json.loads(self.path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ModelFileError("config.json is not valid JSON", file=self.path) from error
        if not isinstance(data, dict):
            raise ModelFileError("config.json is not a JSON object", file=self.path)
        return data

    def change(self, content: Mapping[str, Any]) -> None:
        """Make it say something else; it is written when the package is saved."""
        self.changed = None if content == self.content else dict(content)

    @property
    def text(self) -> bytes | None:
        """What is to be written; None while it stays as it is."""
        return None if self.changed is None else (json.dumps(self.changed, indent=2) + "\n").encode()

    def check(self) -> None:
        """Refuse to replace a file that somebody has changed since.

        Raises:
            ModelFileError: Somebody has.
        """
        from ovgraft.ir.files import stamp

        if self.changed is not None and stamp(self.path) != self._stamp:
            raise ModelFileError("config.json changed on disk since it was read", file=self.path)

    def settle(self) -> None:
        """Take it for what is on disk."""
        self.changed = self._read = None
