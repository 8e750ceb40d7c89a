"""Converts that runtimes know for decompression: the weight stays as it is stored, and is widened where it is used.

Without the mark a plugin folds the Convert and keeps the matrix in f32, twice the size. Python cannot set the mark, a
runtime attribute of OpenVINO's own; an IR in text can, and a clone keeps it.
"""

from __future__ import annotations

import functools

import openvino as ov

from ovgraft.ir import core

_DONOR = """<?xml version="1.0"?>
<net name="decompression" version="11">
  <layers>
    <layer id="0" name="stored" type="Parameter" version="opset1">
      <data shape="?" element_type="f16"/>
      <output><port id="0" precision="FP16"><dim>-1</dim></port></output>
    </layer>
    <layer id="1" name="widened" type="Convert" version="opset1">
      <data destination_type="f32"/>
      <rt_info><attribute name="decompression" version="0"/></rt_info>
      <input><port id="0" precision="FP16"><dim>-1</dim></port></input>
      <output><port id="1" precision="FP32"><dim>-1</dim></port></output>
    </layer>
    <layer id="2" name="result" type="Result" version="opset1">
      <input><port id="0" precision="FP32"><dim>-1</dim></port></input>
    </layer>
  </layers>
  <edges>
    <edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
    <edge from-layer="1" from-port="1" to-layer="2" to-port="0"/>
  </edges>
</net>
"""


def widen(stored: ov.Output, name: str) -> ov.Output:
    """A stored weight as f32, by a marked Convert.

    Args:
        stored: f16 or bf16.
        name: Friendly name of the Convert.

    Returns:
        f32 of the same shape.
    """
    result = _donor().clone().get_results()[0]
    convert = result.input_value(0).get_node()
    convert.input(0).replace_source_output(stored)
    convert.validate_and_infer_types()
    convert.set_friendly_name(name)
    return convert.output(0)


@functools.cache
def _donor() -> ov.Model:
    return core().read_model(_DONOR.encode(), b"")
