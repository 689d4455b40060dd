"""Makes checkpoints: safetensors files with headers as real ones have them, and holes where the weights would be."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hatch_model_cache.recipe.safetensors_header import BITS

Tensors = Mapping[str, tuple[str, Sequence[int]]]
"""Name → dtype as safetensors calls it, and shape."""


def layout(tensors: Tensors) -> dict[str, Any]:
    """The header of a file with these tensors, in the order of the safetensors library: wide numbers first."""
    found, at = {}, 0
    for name, (kind, shape) in sorted(tensors.items(), key=lambda item: (-BITS[item[1][0]], item[0])):
        end = at + math.prod(shape) * BITS[kind] // 8
        found[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    return found


def write(path: Path, tensors: Tensors, scale: float = 0.25) -> Path:
    """A file with these tensors. scale: of every F32 tensor with one number; everything else is a hole."""
    header = layout(tensors)
    text = json.dumps(header).encode()
    start = 8 + len(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(start + max((tensor["data_offsets"][1] for tensor in header.values()), default=0))
        for name, (kind, shape) in tensors.items():
            if kind == "F32" and math.prod(shape) == 1:
                file.seek(start + header[name]["data_offsets"][0])
                file.write(struct.pack("<f", scale))
    return path


def model(config: Mapping[str, Any], weights: str = "bf16") -> Tensors:
    """The tensors of a Llama, or of a Qwen3-MoE, with this config.json.

    weights: of the linear layers: ``bf16``, ``static fp8`` or ``awq`` (the router of a mixture has none of these).
    """
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    linear = {f"self_attn.{name}_proj": (keys, hidden) for name in "kv"}
    linear |= {"self_attn.q_proj": (queries, hidden), "self_attn.o_proj": (hidden, queries)}
    plain: dict[str, Sequence[int]] = {f"{name}.weight": [hidden] for name in ("input_layernorm", _AFTER)}
    if config["model_type"] == "qwen3_moe":
        inner = config["moe_intermediate_size"]
        plain |= {f"self_attn.{name}_norm.weight": [head] for name in "qk"}
        plain |= {"mlp.gate.weight": [config["num_experts"], hidden]}
        blocks = [f"mlp.experts.{number}" for number in range(config["num_experts"])]
    else:
        inner, blocks = config["intermediate_size"], ["mlp"]
    for block in blocks:
        linear |= {f"{block}.{name}_proj": (inner, hidden) for name in ("gate", "up")}
        linear |= {f"{block}.down_proj": (hidden, inner)}
    table: dict[str, tuple[str, Sequence[int]]] = {
        "lm_head.weight": ("BF16", [config["vocab_size"], hidden]),
        "model.embed_tokens.weight": ("BF16", [config["vocab_size"], hidden]),
        "model.norm.weight": ("BF16", [hidden]),
    }
    for layer in (f"model.layers.{number}" for number in range(config["num_hidden_layers"])):
        table |= {f"{layer}.{name}": ("BF16", shape) for name, shape in plain.items()}
        for name, (rows, columns) in linear.items():
            table |= {f"{layer}.{name}.{part}": tensor for part, tensor in _linear(rows, columns, weights).items()}
    return table


_AFTER = "post_attention_layernorm"
_GROUP = 128
"""Numbers of one column that share a scale, in AWQ."""


def _linear(rows: int, columns: int, weights: str) -> Tensors:
    if weights == "awq":  # eight numbers of four bits in each of 32
        groups = columns // _GROUP
        packed = {"qweight": ("I32", [columns, rows // 8]), "qzeros": ("I32", [groups, rows // 8])}
        return packed | {"scales": ("F16", [groups, rows])}
    if weights == "static fp8":
        return {"weight": ("F8_E4M3", [rows, columns])} | dict.fromkeys(("weight_scale", "input_scale"), ("F32", ()))
    return {"weight": ("BF16", [rows, columns])}
