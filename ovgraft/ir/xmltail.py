"""Model-level rt_info edited in the text of an IR, everything else kept byte for byte.

OpenVINO writes ``<rt_info>`` last in the file, one element per name, sorted: ``<name value="text" />`` for text,
``<name>...</name>`` for a branch, ``<info name="any text" ... />`` for what is no XML name. Text that is laid out in
any other way is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ovgraft.drafts.contract import RtPath

_EDGES_END = b"</edges>"
_RT_INFO = b"<rt_info"
_BARE_TAIL = re.compile(rb"\s*</net>\s*")
_NET_END = re.compile(rb"\s*</net>\s*\Z")
_TAG = re.compile(rb'\s*<(/?)([A-Za-z_][A-Za-z0-9_.-]*)(?: name="([^"<]*)")?(?: value="([^"<]*)")? ?(/?)>')

# as OpenVINO decides; what is no such name goes into <info name="">
_XML_NAME = re.compile(r"(?!xml)[a-z_][a-z0-9_.-]*", re.IGNORECASE | re.ASCII)

_NAMED_ENTITIES = {"quot": '"', "lt": "<", "gt": ">", "amp": "&", "apos": "'"}
_ENTITY = re.compile(r"&(?:#x([0-9a-fA-F]+)|#([0-9]+)|(quot|lt|gt|amp|apos));")
_ESCAPED = re.compile('[&<"\x00-\x1f]')
_ESCAPES = {"&": "&amp;", "<": "&lt;", '"': "&quot;"}


class UnexpectedXmlError(Exception):
    """The text is not laid out as OpenVINO writes it: let OpenVINO write it again."""


@dataclass
class _Entry:
    """One element: bytes ``start`` to ``end`` of the text, the opening tag ends at ``inside``."""

    name: str
    value: str | None
    start: int
    inside: int
    end: int = 0
    children: list[_Entry] = field(default_factory=list)


_Tree = dict[str, "_Tree | str"]
_Splice = tuple[int, int, bytes]


def has_model_info_only(text: bytes) -> bool:
    """Whether an IR's text has no rt_info but the model's own: none of nodes and ports, none within bodies."""
    first = text.find(_RT_INFO)
    return first < 0 or first > text.rfind(_EDGES_END)


def read_rt_info(text: bytes) -> dict[RtPath, str]:
    """Model-level entries of an IR's text, in the order they stand there.

    Raises:
        UnexpectedXmlError: The end of the text is not laid out as OpenVINO writes it.
    """
    root = _parse(text)
    return {} if root is None else dict(_flatten(root, ()))


def splice_rt_info(text: bytes, wanted: Mapping[RtPath, str]) -> bytes:
    """Make the model-level entries of an IR's text the wanted ones.

    Entries that are right already keep their bytes; new ones go where OpenVINO would write them.

    Args:
        text: A whole .xml.
        wanted: All entries the result shall have.

    Raises:
        UnexpectedXmlError: The end of the text is not laid out as OpenVINO writes it, or would not be afterwards.
    """
    root, tree = _parse(text), _tree(wanted)
    pieces, done = [], 0
    for start, end, replacement in _root_changes(text, root, tree):
        pieces += [text[done:start], replacement]
        done = end
    spliced = b"".join([*pieces, text[done:]])
    if read_rt_info(spliced) != dict(wanted):
        raise UnexpectedXmlError("the edited rt_info does not read back as wanted")
    return spliced


def _root_changes(text: bytes, root: _Entry | None, wanted: _Tree) -> Iterator[_Splice]:
    if root is not None:
        yield from _changes(root, wanted, 1)
    elif wanted:
        at = text.rindex(_EDGES_END) + len(_EDGES_END)
        yield at, at, b"\n\t" + _render("rt_info", wanted, 1)


def _parse(text: bytes) -> _Entry | None:
    """The rt_info element; None when the text has none."""
    edges = text.rfind(_EDGES_END)
    if edges < 0:
        raise UnexpectedXmlError("no edges")
    at = edges + len(_EDGES_END)
    if _BARE_TAIL.fullmatch(text, at):
        return None
    top = _Entry("", None, at, at)
    stack = [top]
    while len(stack) > 1 or not top.children:
        tag = _TAG.match(text, at)
        if tag is None:
            raise UnexpectedXmlError(f"no rt_info entry at byte {at}")
        at = tag.end()
        closing, element, name, value, empty = tag.groups()
        if closing:
            entry = stack.pop()
            if len(stack) == 0 or text[entry.start + 1 :][: len(element)] != element:
                raise UnexpectedXmlError(f"an end tag of nothing at byte {tag.start()}")
            entry.end = at
            continue
        if stack[-1].value is not None:
            raise UnexpectedXmlError(f"text and entries in one element at byte {tag.start()}")
        key = _text(element if name is None or element != b"info" else name)
        if any(child.name == key for child in stack[-1].children):
            raise UnexpectedXmlError(f"a second {key}")
        entry = _Entry(key, None if value is None else _text(value), text.index(b"<", tag.start()), at, at)
        stack[-1].children.append(entry)
        if not empty:
            stack.append(entry)
    if top.children[0].name != "rt_info" or not _NET_END.match(text, at):
        raise UnexpectedXmlError("something else than rt_info follows the edges")
    return top.children[0]


def _flatten(entry: _Entry, path: RtPath) -> Iterator[tuple[RtPath, str]]:
    for child in entry.children:
        if child.value is not None:
            yield (*path, child.name), child.value
        yield from _flatten(child, (*path, child.name))


def _tree(entries: Mapping[RtPath, str]) -> _Tree:
    tree: _Tree = {}
    for path, value in entries.items():
        branch = tree
        for name in path[:-1]:
            below = branch.setdefault(name, {})
            if isinstance(below, str):
                raise UnexpectedXmlError(f"{name} is both text and branch")
            branch = below
        branch[path[-1]] = value
    return tree


def _changes(entry: _Entry, wanted: _Tree, depth: int) -> Iterator[_Splice]:
    """Splices, in text order, that make the children of ``entry`` the wanted ones; ``depth`` is its own indentation."""
    if not entry.children:
        if wanted:
            yield entry.start, entry.end, _render(entry.name, wanted, depth)
        return
    after = entry.inside
    missing = sorted(wanted.keys() - {child.name for child in entry.children})
    indent = b"\n" + b"\t" * (depth + 1)
    for child in entry.children:
        while missing and missing[0] < child.name:
            name = missing.pop(0)
            yield after, after, indent + _render(name, wanted[name], depth + 1)
        new = wanted.get(child.name)
        if new is None or new == {}:
            if child.value is not None or child.children:
                yield after, child.end, b""
        elif isinstance(new, dict) and child.value is None:
            yield from _changes(child, new, depth + 1)
        elif new != child.value:
            yield child.start, child.end, _render(child.name, new, depth + 1)
        after = child.end
    for name in missing:
        yield after, after, indent + _render(name, wanted[name], depth + 1)


def _render(name: str, value: _Tree | str, depth: int) -> bytes:
    """One element as pugixml prints it, without the indentation of its first line."""
    if _XML_NAME.fullmatch(name):
        element, opening = name, name
    else:
        element, opening = "info", f'info name="{_escape(name)}"'
    if isinstance(value, str):
        return f'<{opening} value="{_escape(value)}" />'.encode()
    indent = b"\n" + b"\t" * depth
    inside = b"".join(indent + b"\t" + _render(key, value[key], depth + 1) for key in sorted(value))
    return f"<{opening}>".encode() + inside + indent + f"</{element}>".encode()


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[0]) or f"&#{ord(found[0]):02};", text)


def _text(data: bytes) -> str:
    def character(found: re.Match[str]) -> str:
        if found[3]:
            return _NAMED_ENTITIES[found[3]]
        return chr(int(found[1], 16) if found[1] else int(found[2]))

    try:
        return _ENTITY.sub(character, data.decode())
    except (UnicodeDecodeError, ValueError, OverflowError) as error:
        raise UnexpectedXmlError(str(error)) from error
