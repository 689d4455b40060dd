"""Write real weights for a tiny Llama. Run by an engine's own interpreter.

    python tiny_weights.py CONFIG_DIRECTORY MODEL_DIRECTORY SEED

The numbers depend on nothing but shapes and seed, so every run gives the same file.
"""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SMALL = bytes((0x3C, 0x3D, 0xBC, 0xBD)[i % 4] for i in range(256))
"""Upper bytes of bfloat16 numbers between 0.007 and 0.1, of both signs."""


def llama(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """All tensors of a Llama with this config.json."""
    numbers = random.Random(seed)

    def tensor(*shape: int) -> torch.Tensor:
        data = bytearray(2 * math.prod(shape))
        data[0::2] = numbers.randbytes(len(data) // 2)
        data[1::2] = numbers.randbytes(len(data) // 2).translate(SMALL)
        return torch.frombuffer(data, dtype=torch.bfloat16).reshape(shape)

    hidden, inner, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    ones = torch.ones(hidden, dtype=torch.bfloat16)
    found = {
        "model.embed_tokens.weight": tensor(words, hidden),
        "lm_head.weight": tensor(words, hidden),
        "model.norm.weight": ones.clone(),
    }
    for layer in range(config["num_hidden_layers"]):
        shapes = {
            "self_attn.q_proj": (query, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, query),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        prefix = f"model.layers.{layer}"
        found |= {f"{prefix}.{name}.weight": tensor(*shape) for name, shape in shapes.items()}
        found |= {f"{prefix}.{name}_layernorm.weight": ones.clone() for name in ("input", "post_attention")}
    return found


def main(source: Path, target: Path, seed: int) -> None:
    """Write config.json and model.safetensors into `target`."""
    text = (source / "config.json").read_text()
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(text)
    save_file(llama(json.loads(text), seed), str(target / "model.safetensors"), {"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
