"""How much of a mapped .bin an inspection looks at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import ROOT

_CODE = """
import sys
from pathlib import Path
from ovgraft import inspection, ir
model = ir.read_model(Path(sys.argv[1]) / "openvino_model.xml")
inspection.collect_model(model, "m", inspection.Request(**dict.fromkeys(sys.argv[2:], True)))
inside, rss = False, 0
for line in open("/proc/self/smaps"):
    if "-" in line.split()[0]:
        inside = line.rstrip().endswith("openvino_model.bin")
    elif inside and line.startswith("Rss:"):
        rss += int(line.split()[1])
print(rss)
"""


def resident_weights(folder: Path, *sections: str) -> int:
    """KiB of the weights that are in memory after a process of its own has collected some sections."""
    command = [sys.executable, "-c", _CODE, str(folder), *sections]
    return int(subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout)
