"""Any OpenVINO IR, nothing about language models: reading, editing, comparing and safe saving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft._lazy import attach

if TYPE_CHECKING:
    from openvino import opset16 as opset

    from ovgraft.ir.build import make_parameter, make_result, rename_tensor
    from ovgraft.ir.clone import clone_subgraph
    from ovgraft.ir.compare import same_structure
    from ovgraft.ir.digest import weights_digest
    from ovgraft.ir.graph import Graph
    from ovgraft.ir.hashing import fingerprint
    from ovgraft.ir.head_sizes import HEAD_SIZES, PAGED_ATTENTION, keep_head_sizes, restore_head_sizes
    from ovgraft.ir.naming import name_by_place
    from ovgraft.ir.reading import bin_path, core, read_model, verify_digest
    from ovgraft.ir.refs import node_ref
    from ovgraft.ir.rtinfo import (
        delete,
        flatten,
        get_text,
        get_user_data,
        set_text,
        set_user_data,
        strip_weightless_cache,
    )
    from ovgraft.ir.weights import WeightSubgraph, weight_root

__all__ = [
    "HEAD_SIZES",
    "PAGED_ATTENTION",
    "Graph",
    "WeightSubgraph",
    "bin_path",
    "clone_subgraph",
    "core",
    "delete",
    "fingerprint",
    "flatten",
    "get_text",
    "get_user_data",
    "keep_head_sizes",
    "make_parameter",
    "make_result",
    "name_by_place",
    "node_ref",
    "opset",
    "read_model",
    "rename_tensor",
    "restore_head_sizes",
    "same_structure",
    "set_text",
    "set_user_data",
    "strip_weightless_cache",
    "verify_digest",
    "weight_root",
    "weights_digest",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "build": ("make_parameter", "make_result", "opset", "rename_tensor"),
        "clone": ("clone_subgraph",),
        "compare": ("same_structure",),
        "digest": ("weights_digest",),
        "hashing": ("fingerprint",),
        "graph": ("Graph",),
        "head_sizes": ("HEAD_SIZES", "PAGED_ATTENTION", "keep_head_sizes", "restore_head_sizes"),
        "naming": ("name_by_place",),
        "reading": ("bin_path", "core", "read_model", "verify_digest"),
        "refs": ("node_ref",),
        "rtinfo": (
            "delete",
            "flatten",
            "get_text",
            "get_user_data",
            "set_text",
            "set_user_data",
            "strip_weightless_cache",
        ),
        "weights": ("WeightSubgraph", "weight_root"),
    },
)
