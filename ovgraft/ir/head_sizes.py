"""Head sizes of PagedAttention ops: node rt_info the CPU plugin asks for and OpenVINO forgets on save.

Without them a saved paged IR does not compile ("Runtime info k_head_size and num_k_heads are required for
PagedAttention node"). They are kept as ``user_data``, which is saved, and put back as integers on load.
"""

from __future__ import annotations

from collections.abc import Iterable

import openvino as ov

from ovgraft.ir.rtinfo import get_user_data, set_user_data

PAGED_ATTENTION = "PagedAttentionExtension"

HEAD_SIZES = ("k_head_size", "num_k_heads", "v_head_size", "num_v_heads")


def keep_head_sizes(nodes: Iterable[ov.Node]) -> None:
    """Record the head sizes of paged ops where a saved IR keeps them.

    Args:
        nodes: PagedAttentionExtension ops.
    """
    for node in nodes:
        rt_info = node.get_rt_info()
        for key in HEAD_SIZES:
            if key in rt_info:
                set_user_data(node, key, str(rt_info[key].value))


def restore_head_sizes(model: ov.Model) -> None:
    """Give the paged ops of a loaded IR their integers back; an op without record stays as it is."""
    for node in model.get_ops():
        if node.get_type_name() == PAGED_ATTENTION:
            for key in HEAD_SIZES:
                value = get_user_data(node, key)
                if value is not None:
                    node.get_rt_info()[key] = int(value)
