"""A program that uses torch.compile: argv is the directory of the factory's module, `module:function`, a wheel or -.

Real weights from a seed, real inputs; prints one JSON object.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import time
from dataclasses import asdict

import torch

DIRECTORY, FACTORY, WHEEL = sys.argv[1:]
SEED = 7


def main() -> None:
    """Run the module once compiled, after loading the wheel if there is one."""
    sys.path.insert(0, DIRECTORY)
    name, _, function = FACTORY.partition(":")
    torch.manual_seed(SEED)
    module, inputs = getattr(importlib.import_module(name), function)()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    for tensor in inputs:  # in place, so that dimensions stay marked
        if tensor.is_floating_point():
            tensor.normal_()
        else:
            tensor.random_(0, 100)
    answer: dict[str, object] = {}
    loaded = None
    begun = time.monotonic()
    if WHEEL != "-":
        import model_cache.torch

        loaded = model_cache.torch.load(WHEEL)
        answer["parts"], answer["kernels"] = dict(loaded.parts), loaded.kernels
    compiled = torch.compile(module)
    with torch.no_grad():
        result = compiled(*inputs)
    answer["seconds"] = round(time.monotonic() - begun, 2)
    if loaded:
        answer["use"] = asdict(loaded.use())
    answer["result"] = hashlib.sha256(result.numpy().tobytes()).hexdigest()
    with torch.no_grad():
        answer["error"] = float((result - module(*inputs)).abs().max())
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
