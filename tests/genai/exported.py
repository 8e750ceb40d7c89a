"""Exported drafts built anew: the checkpoint behind one that came without, and the IR ovgraft builds from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovgraft import ir, load
from ovgraft.ir.constants import constant_bytes
from ovgraft.passes.build_draft import BuildDraft
from ovgraft.pipeline import Pipeline
from tests.drafts import checkpoints


def checkpoint_of(draft: Path, out: Path) -> Path:
    """Write a checkpoint with the weights of an exported IR: the same numbers, z-lab's names.

    Args:
        draft: Package of the exported draft; matrices in f32, f16 or bf16.
        out: Folder to make.
    """
    tensors: dict[str, NDArray[Any]] = {}
    types = {"f32": np.float32, "f16": np.float16, "bf16": checkpoints.BF16}
    for node in ir.read_model(draft / "openvino_model.xml").get_ordered_ops():
        module, _, operation = node.get_friendly_name().removeprefix("__module.").partition("/")
        if node.get_type_name() == "MatMul":
            root = ir.weight_root(node.input_value(1))
        elif operation == "aten::mul/Multiply_1" and module.endswith("norm"):
            root = ir.weight_root(node.input_value(0))
        else:
            continue
        if root is None:
            continue
        constant, name = max(root.constants, key=lambda each: each.get_byte_size()), f"{module}.weight"
        shape = [size for size in constant.get_output_shape(0) if size > 1]
        kind = constant.get_output_element_type(0).get_type_name()
        tensors[name] = np.frombuffer(constant_bytes(constant), types[kind]).reshape(shape)
    config = json.loads((draft / "config.json").read_bytes())
    for name, width in _norms(config).items():
        tensors.setdefault(name, np.ones(config[width], np.float32))  # OpenVINO drops a product with ones
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(config))
    checkpoints.write_safetensors(out / "model.safetensors", tensors)
    return out


def _norms(config: dict[str, Any]) -> dict[str, str]:
    """Norms of a z-lab draft, and the config key of their widths."""
    names = {"norm.weight": "hidden_size", "hidden_norm.weight": "hidden_size"}
    for layer in range(config["num_hidden_layers"]):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            names[f"layers.{layer}.{norm}.weight"] = "hidden_size"
        for norm in ("q_norm", "k_norm"):
            names[f"layers.{layer}.self_attn.{norm}.weight"] = "head_dim"
    return names


def built(checkpoint: Path, target: Path, out: Path) -> Path:
    """The draft's package, from its checkpoint alone."""
    graft = load(target=target, draft=checkpoint)
    Pipeline([BuildDraft()]).run(graft)
    graft.save(out)
    return out / "draft"
