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


def llama(config: Mapping[str, Any], *, static_fp8: bool = False) -> dict[str, tuple[str, Sequence[int]]]:
    """The tensors of a Llama with this config.json, in bfloat16; static_fp8: those of its layers in fp8, scaled."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    linear = {
        **{f"self_attn.{name}_proj": [keys, hidden] for name in "kv"},
        **{f"mlp.{name}_proj": [inner, hidden] for name in ("gate", "up")},
        "self_attn.q_proj": [queries, hidden],
        "self_attn.o_proj": [hidden, queries],
        "mlp.down_proj": [hidden, inner],
    }
    table: dict[str, tuple[str, Sequence[int]]] = {
        "lm_head.weight": ("BF16", [config["vocab_size"], hidden]),
        "model.embed_tokens.weight": ("BF16", [config["vocab_size"], hidden]),
        "model.norm.weight": ("BF16", [hidden]),
    }
    for layer in (f"model.layers.{number}" for number in range(config["num_hidden_layers"])):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            table[f"{layer}.{norm}.weight"] = ("BF16", [hidden])
        for name, shape in linear.items():
            table[f"{layer}.{name}.weight"] = ("F8_E4M3" if static_fp8 else "BF16", shape)
            if static_fp8:
                table |= {f"{layer}.{name}.{kind}_scale": ("F32", []) for kind in ("weight", "input")}
    return table
