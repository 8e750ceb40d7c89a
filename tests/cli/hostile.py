"""Inputs that are not what they should be: files, graphs and names that nobody meant well."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset16 as ops

from tests import models
from tests.support import ROOT

Make = Callable[[Path], object]
"""Writes into a folder that holds a good package or checkpoint already."""

XML, BIN, CONFIG, WEIGHTS = "openvino_model.xml", "openvino_model.bin", "config.json", "model.safetensors"

NAMES = (
    "a\x01b\x1b[31mred\x1b[0m\tq\nz\x9b2J",
    "[bold]x[/bold][/enc]<script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;]]>-->{{7*7}}{%x%}",
    "\u202egnp.exe\u2066\u05d0\u05d1",
    "n" * 20_000,
    "\U0001f600\u200d\ufeff\u0300\u3000",
    "",
)


def target(folder: Path) -> Path:
    """A package as it should be."""
    return models.write_package(models.tiny_decoder(1), folder)


def draft(folder: Path) -> Path:
    """Its draft."""
    config = {"model_type": "qwen3", "dflash_config": {"block_size": 8}}
    return models.write_package(models.tiny_dflash_draft(1, n=1, target_layer_ids=(0,)), folder, config=config)


def checkpoint(folder: Path) -> Path:
    """A checkpoint as it should be."""
    shutil.copytree(ROOT / "samples" / "dspark", folder)
    return folder


def replaced(old: str, new: str, count: int = 1) -> Make:
    """Edit the xml by a pattern."""

    def edit(folder: Path) -> None:
        text = (folder / XML).read_text("utf-8")
        changed = re.sub(old, lambda found: new, text, count=count, flags=re.DOTALL)
        assert changed != text
        (folder / XML).write_text(changed, "utf-8")

    return edit


def written(name: str, data: bytes) -> Make:
    """Replace a file."""
    return lambda folder: (folder / name).write_bytes(data)


def made(name: str, make: Callable[[Path], object], instead_of: str | None = None) -> Make:
    """Make something else instead of a file."""

    def edit(folder: Path) -> None:
        (folder / (instead_of or name)).unlink()
        make(folder / name)

    return edit


def linked(name: str, target: str) -> Make:
    """Replace a file by a link."""
    return made(name, lambda file: file.symlink_to(target))


def piped(name: str) -> Make:
    """Replace a file by a pipe that nobody writes to."""
    return made(name, os.mkfifo)


def foldered(name: str) -> Make:
    """Replace a file by a folder."""
    return made(name, Path.mkdir)


def _bomb() -> str:
    levels = "abcdefghij"
    entities = [f'<!ENTITY {to} "{f"&{of};" * 10}">' for of, to in itertools.pairwise(levels)]
    return f'<?xml version="1.0"?><!DOCTYPE net [<!ENTITY a "ha">{"".join(entities)}]>'


def _header(header: object) -> Make:
    """Give the weights another header, and four bytes of data."""
    text = json.dumps(header).encode()
    return written(WEIGHTS, struct.pack("<Q", len(text)) + text + bytes(4))


def _tensor(kind: object, *shape: int) -> Make:
    return _header({"x": {"dtype": kind, "shape": shape, "data_offsets": [0, 4]}})


def _instead(name: str, data: bytes) -> Make:
    """Another file instead of the weights."""
    return made(name, lambda file: file.write_bytes(data), WEIGHTS)


def _metadata(entries: str) -> Make:
    """Write into the model's own rt_info, the last one."""

    def edit(folder: Path) -> None:
        before, mark, after = (folder / XML).read_text("utf-8").rpartition("<rt_info>")
        assert mark
        (folder / XML).write_text(f"{before}{mark}{entries}{after}", "utf-8")

    return edit


_DEEP = "<a>" * 99_999 + "</a>" * 99_999

DAMAGED: dict[str, tuple[Make, str]] = {
    "empty": (written(XML, b""), "not an OpenVINO IR"),
    "random": (written(XML, bytes(range(256)) * 20), "not an OpenVINO IR"),
    "utf-16": (lambda f: (f / XML).write_text((f / XML).read_text("utf-8"), "utf-16"), "not an OpenVINO IR"),
    "cut": (lambda f: (f / XML).write_bytes((f / XML).read_bytes()[:9000]), "cut off"),
    "zeros inside": (replaced("<edges>", "<edges>\0\0\0"), "damaged"),
    "no UTF-8": (lambda f: (f / XML).write_bytes((f / XML).read_bytes().replace(b"lm_head", b"\xff")), "UTF-8"),
    "a folder": (foldered(XML), "no OpenVINO model"),
    "a pipe": (piped(XML), "no regular file"),
    "a device": (linked(XML, "/dev/zero"), "no regular file"),
    "a link to itself": (linked(XML, XML), "no such file"),
    "no weights": (lambda f: (f / BIN).unlink(), f"no {BIN} beside it"),
    "empty weights": (written(BIN, b""), "is cut off"),
    "weights too long": (lambda f: (f / BIN).open("ab").write(b"x"), "do not belong"),
    "weights in a folder": (foldered(BIN), f"no {BIN} beside it"),
    "weights in a pipe": (piped(BIN), f"no {BIN} beside it"),
    "weights without end": (linked(BIN, "/dev/zero"), f"no {BIN} beside it"),
    "weights that link to themselves": (linked(BIN, BIN), BIN),
    "no net": (written(XML, b"<html><net></net></body></html>"), "cut off"),
    "nothing in the net": (written(XML, b"<net></net>"), "do not belong"),
    "an IR of the future": (replaced(r'(?<= )version="11"', 'version="99"'), "damaged"),
    "an op of the future": (replaced('"MatMul" version="opset1"', '"New" version="opset99"'), "New of opset99"),
    "an edge from nowhere": (replaced(r'from-layer="\d+"', 'from-layer="999999"'), "damaged"),
    "no edges": (replaced("<edges>.*</edges>", "<edges></edges>"), "damaged"),
    "a type nobody has": (replaced('element_type="f32"', 'element_type="f1024"'), "damaged"),
    "a negative shape": (replaced('shape="64, 32"', 'shape="64, -32"'), "damaged"),
    "a shape too large": (replaced('shape="64, 32"', 'shape="6400000000, 3200000000"'), "damaged"),
    "an offset too large": (replaced('offset="0"', 'offset="99999999999999999999"'), "is cut off"),
    "an offset of many digits": (replaced('offset="0"', f'offset="{"9" * 5000}"'), ""),
    "an offset that wraps": (replaced('offset="0"', 'offset="18446744073709551612"'), "is cut off"),
    "metadata without end": (replaced("<layers>", f"<rt_info>{_DEEP}</rt_info><layers>"), "without end"),
}  # fmt: skip
"""What is done to a package, and a part of what every command must say of it."""

STILL_GOOD: dict[str, Make] = {
    "an entity bomb": replaced(r'<\?xml version="1.0"\?>', _bomb()),
    "an outer entity": replaced("<net ", '<!DOCTYPE net SYSTEM "file:///etc/passwd"><net '),
    "a byte order mark": lambda f: (f / XML).write_bytes(b"\xef\xbb\xbf" + (f / XML).read_bytes()),
    "a name of megabytes": replaced('name="Model0"', f'name="{"x" * 3_000_000}"'),
    "an annotation without end": _metadata(f'<hidden_states_decoder_layers value="{"[" * 99_999}" />'),
    "metadata of a draft": _metadata(
        '<dflash_mode value="True"/><dflash><mask_token_id value="nan"/><target_layer_ids value="x,,y"/></dflash>'
    ),
    "a config that is a list": written(CONFIG, b"[1]"),
    "a config without end": written(CONFIG, b"[" * 99_999),
    "a config of digits": written(CONFIG, b'{"hidden_size": 1' + b"0" * 5000 + b"}"),
    "a config with NaN": written(CONFIG, b'{"hidden_size": NaN, "hidden_size": -1}'),
    "a config in a pipe": piped(CONFIG),
}  # fmt: skip
"""What is done to a package that can be read all the same; passes may still refuse it."""

CHECKPOINTS: dict[str, tuple[Make, str]] = {
    "no JSON": (written(CONFIG, b"\x00\xff"), "not valid JSON"),
    "no object": (written(CONFIG, b"null"), "not a JSON object"),
    "NaN": (written(CONFIG, b'{"a": NaN}'), "found NaN"),
    "a key twice": (written(CONFIG, b'{"a": 1, "a": 2}'), "stands twice"),
    "many digits": (written(CONFIG, b'{"a": 1' + b"0" * 5000 + b"}"), "out of all range"),
    "lists without end": (written(CONFIG, b"[" * 99_999), "nested without end"),
    "no weights": (written(WEIGHTS, b""), "truncated"),
    "weights of noise": (written(WEIGHTS, b"\xb5" * 4096), "not a safetensors file"),
    "a header that is a list": (_header([]), "not a JSON object"),
    "a type that is a list": (_tensor(["F32"], 1), "type that is not read"),
    "a shape that overflows": (_tensor("F32", 2**62, 2**62), "does not fit"),
    "weights in a folder": (foldered(WEIGHTS), "not a regular file"),
    "weights in a pipe": (piped(WEIGHTS), "not a regular file"),
    "an index that leaves the folder": (written(f"{WEIGHTS}.index.json", b'{"weight_map": {"a": "/x"}}'), "beside"),
    "garbage as ONNX": (_instead("model.onnx", b"garbage" * 99), "not an ONNX model"),
    "an empty ONNX file": (_instead("model.onnx", b""), "missing"),
    "an empty archive": (_instead("model.npz", b""), "damaged archive"),
    "pickles": (_instead("pytorch_model.bin", b"x"), "pickled"),
}  # fmt: skip
"""What is done to a checkpoint, and a part of what is said of it."""


def _parameter(shape: list[int] | ov.PartialShape, kind: ov.Type = ov.Type.f32, name: str = "x") -> ov.Node:
    node = ops.parameter(shape, kind)
    node.set_friendly_name(name)
    node.output(0).get_tensor().set_names({name})
    return node


def _loop() -> ov.Model:
    x, inner = _parameter([-1, 4]), ops.parameter([-1, 4], ov.Type.f32)
    step, go_on = ops.relu(inner), ops.constant(True)
    loop = ops.loop(ops.constant(np.int64(3)), ops.constant(True))
    loop.set_function(ov.Model([ops.result(step), ops.result(go_on)], [inner], "body"))
    loop.set_special_body_ports([-1, 1])
    loop.set_merged_input(inner, x.output(0), step.output(0))
    return ov.Model([ops.result(loop.get_iter_value(step.output(0), -1))], [x], "loop")


def _if() -> ov.Model:
    condition, x = _parameter([], ov.Type.boolean, "condition"), _parameter([-1, 4])
    ends = [ops.parameter([-1, 4], ov.Type.f32) for _ in range(2)]
    bodies = [
        ov.Model([ops.result(op(end))], [end], "body") for op, end in zip((ops.relu, ops.tanh), ends, strict=True)
    ]
    node = ops.if_op(condition.output(0))
    node.set_then_body(bodies[0])
    node.set_else_body(bodies[1])
    node.set_input(x.output(0), *ends)
    return ov.Model([ops.result(node.set_output(*(body.get_results()[0] for body in bodies)))], [condition, x], "if")


def _tensor_iterator() -> ov.Model:
    x = _parameter([1, 5, 4])
    item, sum_ = (ops.parameter([1, 1, 4], ov.Type.f32) for _ in range(2))
    add = ops.add(item, sum_)
    node = ops.tensor_iterator()
    node.set_body(ov.Model([ops.result(add)], [item, sum_], "body"))
    node.set_sliced_input(item, x.output(0), 0, 1, 1, -1, 1)
    node.set_merged_input(sum_, ops.constant(np.zeros((1, 1, 4), np.float32)).output(0), add.output(0))
    return ov.Model([ops.result(node.get_iter_value(add.output(0), -1))], [x], "iterator")


def _no_rank() -> ov.Model:
    ids = _parameter(ov.PartialShape.dynamic(), ov.Type.i64, "input_ids")
    logits = ops.convert(ids, "f32")
    logits.output(0).get_tensor().set_names({"logits"})
    return ov.Model([ops.result(logits)], [ids], "no rank")


def _two_outputs() -> ov.Model:
    x = _parameter([-1, 4])
    best = ops.topk(x, ops.constant(np.int64(2)), 1, "max", "value")
    return ov.Model([ops.result(best.output(1)), ops.result(best.output(0)), ops.result(best.output(1))], [x], "two")


def _straight() -> ov.Model:
    x = _parameter([-1, 4])
    return ov.Model([ops.result(x)], [x, _parameter([2], name="unread")], "straight")


def _nameless() -> ov.Model:
    x = ops.parameter([2, 2], ov.Type.f32)
    return ov.Model([ops.result(ops.relu(x))], [x])


GRAPHS: dict[str, Callable[[], ov.Model]] = {
    "no ops": lambda: ov.Model([], [], "empty"),
    "no inputs": lambda: ov.Model([ops.result(ops.relu(ops.constant(np.ones((2, 2), np.float32))))], [], "constant"),
    "input to output": _straight,
    "no rank": _no_rank,
    "two outputs": _two_outputs,
    "no names": _nameless,
    "a Loop": _loop,
    "an If": _if,
    "a TensorIterator": _tensor_iterator,
}


def named() -> ov.Model:
    """A decoder whose nodes have all of these names."""
    model = models.tiny_decoder(1)
    names = itertools.cycle(NAMES)
    for node in model.get_ordered_ops():
        name = next(names)
        node.set_friendly_name(f"{name}{node.get_friendly_name() if name else ''}")
    for name in NAMES:
        model.set_rt_info(name, ["evil", name[:50] or "key"])
    return model
