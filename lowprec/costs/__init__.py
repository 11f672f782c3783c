"""Costs of a format: bytes of caches and messages, operations of training, time of exchanges, for any codec.

From the shape of a model (`models`, or `ModelShape.from_dict` and `from_toml`) and a machine (`hardware`) the formulas
of "Insights into DeepSeek-V3" (arXiv 2505.09343) give its tables 1, 2 and 4 and its limits on decoding speed;
`published` compares each published number with the computed one.
"""

from .compute import achieved_flops, kv_cache_bytes, training_flops
from .hardware import Hardware, find_hardware, hardware
from .models import GroupedAttention, LatentAttention, ModelShape, find_model, models
from .nodes import NodesPerToken, NodeTraffic, measured_nodes, node_traffic, uniform_nodes
from .published import PublishedFigure, published
from .traffic import DecodeLimit, bits_per_value, decode_limit, deepep_bandwidth, deepep_message_bytes, row_bytes

__all__ = [
    "DecodeLimit",
    "GroupedAttention",
    "Hardware",
    "LatentAttention",
    "ModelShape",
    "NodeTraffic",
    "NodesPerToken",
    "PublishedFigure",
    "achieved_flops",
    "bits_per_value",
    "decode_limit",
    "deepep_bandwidth",
    "deepep_message_bytes",
    "find_hardware",
    "find_model",
    "hardware",
    "kv_cache_bytes",
    "measured_nodes",
    "models",
    "node_traffic",
    "published",
    "row_bytes",
    "training_flops",
    "uniform_nodes",
]  # fmt: skip
