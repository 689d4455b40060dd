"""Why there is no mode "aot": what torch's aot_compile makes of a module without weights. Prints one JSON object."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

torch._dynamo.config.enable_aot_compile = True


class Small(torch.nn.Module):
    """A weight, and an attribute that decides what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))
        self.factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self.weight * x) * self.factor


def main() -> None:
    """Save it made of fake tensors; load it, and call it with real ones."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode, torch.no_grad():
        fake = Small()
        compiled = torch.compile(fake.forward, fullgraph=True).aot_compile(((torch.zeros(4, 8),), {}))
    data = type(compiled).serialize(compiled).serialized_data
    loaded = type(compiled).deserialize(data)
    module = Small()
    x = torch.randn(4, 8)
    answer: dict[str, Any] = {}
    with torch.no_grad():
        try:
            loaded(module, x)
        except RuntimeError as error:
            answer["guards"] = str(error)
        loaded.disable_guard_check()
        answer["right"] = float((loaded(module, x) - module(x)).abs().max())
        module.factor = 3.0
        answer["another module"] = float((loaded(module, x) - module(x)).abs().max())
        wide = x.double()
        answer["another type"] = float((loaded(module, wide) - module(wide)).abs().max())
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
