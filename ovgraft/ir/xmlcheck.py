"""What an IR's text must be before OpenVINO reads it.

OpenVINO takes names that are no UTF-8, which Python then cannot hold, and follows rt_info and bodies of ops by
recursion until its stack ends.
"""

from __future__ import annotations

import re

DEEPEST = 100
"""Levels of elements; exporters write 6, and a few more for ops with bodies."""

_REFERENCE = re.compile(rb"&#(?:x([0-9a-fA-F]+)|([0-9]+));")
_SURROGATES = range(0xD800, 0xE000)
_FLAT_END = re.compile(rb"</layers>\s*<edges\s*>")
_TAG = re.compile(
    rb"""<(?: !--(?:.*?-->|.*) | !\[CDATA\[(?:.*?\]\]>|.*) | [?!][^>]*> | (?P<close>/)[^>]*> |
    [^<>"']* (?:(?:"[^"]*"|'[^']*') [^<>"']*)* (?P<open>>) )""",
    re.DOTALL | re.VERBOSE,
)


def encoding_problem(text: bytes) -> str | None:
    """Why the text is no UTF-8, or names half of a character; None when all is well."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start} is not UTF-8"
    for found in _REFERENCE.finditer(text):
        number = int(found[1], 16) if found[1] else int(found[2].lstrip(b"0")[:9] or b"0")
        if number in _SURROGATES:
            return f"{found[0].decode()} is no character"
    return None


def is_too_deep(text: bytes) -> bool:
    """Whether elements lie more than :data:`DEEPEST` within each other where OpenVINO follows them by recursion.

    Ops and edges lie flat in the middle of the text. Only when an op has a body, which has ops again, all is looked at.
    """
    first, last = text.find(b"<layers"), text.rfind(b"</edges>")
    plain = all(text.count(mark) == 1 for mark in (b"<layers", b"</layers>", b"<edges", b"</edges>"))
    if plain and first < last and _FLAT_END.match(text, text.find(b"</layers>")):
        return _depth_exceeded(text, ((0, first), (last, len(text))))
    return _depth_exceeded(text, ((0, len(text)),))


def _depth_exceeded(text: bytes, spans: tuple[tuple[int, int], ...]) -> bool:
    depth = 0
    for start, end in spans:
        for tag in _TAG.finditer(text, start, end):
            if tag["close"]:
                depth -= 1
            elif tag["open"] and text[tag.end() - 2] != ord("/"):
                depth += 1
                if depth > DEEPEST:
                    return True
    return False
