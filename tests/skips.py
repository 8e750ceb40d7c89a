"""Count the skipped tests of a JUnit report; fail when one skipped for lack of shared data that is there."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

from tests.support import SHARED, SHARED_MISSING


def main(report: str) -> int:
    """Print the skips by reason.

    Args:
        report: Path of the JUnit XML file.

    Returns:
        Exit code: 1 when shared data is there and a test says it is not, or when no test ran.
    """
    cases = ElementTree.parse(report).getroot().findall(".//testcase")
    reasons = Counter(
        skip.get("message", "")
        for case in cases
        for skip in case.findall("skipped")
        if skip.get("type") != "pytest.xfail"
    )
    print(f"{len(cases)} tests, {reasons.total()} skipped")
    for reason, count in reasons.most_common():
        print(f"  {count} x {reason}")
    if not cases:
        print("error: no test ran")
        return 1
    lacking = sum(count for reason, count in reasons.items() if SHARED_MISSING in reason)
    if lacking and (SHARED / "zoo").is_dir():
        print(f"error: {lacking} tests skipped for lack of shared data, but it lies at {SHARED}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
