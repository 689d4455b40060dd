"""Write real weights for a tiny model. Run by an engine's own interpreter.

    python tiny_weights.py CONFIG_DIRECTORY MODEL_DIRECTORY SEED [eagle]

The model's class in transformers says which tensors there are and how a checkpoint names them. The numbers depend on
nothing but names, shapes and seed, so every run gives the same file. With `eagle` the file is a draft head's: the
layers of that model, and what joins a token with the target's hidden state.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

SMALL = bytes((0x3C, 0x3D, 0xBC, 0xBD)[i % 4] for i in range(256))
"""Upper bytes of bfloat16 numbers between 0.007 and 0.1, of both signs."""


def numbers(name: str, shape: torch.Size, seed: int) -> torch.Tensor:
    """The values of the tensor `name`."""
    source = random.Random(f"{seed} {name}")
    data = bytearray(2 * math.prod(shape))
    data[0::2] = source.randbytes(len(data) // 2)
    data[1::2] = source.randbytes(len(data) // 2).translate(SMALL)
    return torch.frombuffer(data, dtype=torch.bfloat16).reshape(shape)


def made(source: Path, seed: int) -> transformers.PreTrainedModel:
    """The model of a config.json. Scales of norms are what its class begins with: some count from 1, some from 0."""
    config = transformers.AutoConfig.from_pretrained(source)
    architecture = json.loads((source / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, architecture)(config).to(config.dtype)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.dim() > 1 or name.endswith("bias"):
                tensor.copy_(numbers(name, tensor.shape, seed))
    return model


def eagle(model: transformers.PreTrainedModel, seed: int) -> dict[str, torch.Tensor]:
    """The tensors of an EAGLE head that has the layers of `model`."""
    below = "model."
    found = {name.removeprefix(below): value for name, value in model.state_dict().items() if name.startswith(below)}
    del found["norm.weight"], found["layers.0.input_layernorm.weight"]  # what it is given is the target's
    hidden = model.config.hidden_size
    return {**found, "fc.weight": numbers("fc.weight", torch.Size((hidden, 2 * hidden)), seed)}


def main(source: Path, target: Path, seed: int, kind: str = "") -> None:
    """Write a model's directory `target`, with the config.json of `source` to the byte."""
    transformers.utils.logging.disable_progress_bar()
    model = made(source, seed)
    target.mkdir(parents=True, exist_ok=True)
    if kind == "eagle":
        save_file(eagle(model, seed), str(target / "model.safetensors"), {"format": "pt"})
    else:
        model.save_pretrained(target)
    shutil.copyfile(source / "config.json", target / "config.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
