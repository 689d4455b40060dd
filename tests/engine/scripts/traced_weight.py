"""Which files Dynamo traces through for a weight of vLLM's own class and for a plain one, both real, as JSON."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import torch
import vllm.model_executor.parameter as parameter
from torch._dynamo.symbolic_convert import InliningInstructionTranslator

files: set[str] = set()
inline_call = InliningInstructionTranslator.inline_call_


def noted(self: Any) -> Any:
    files.add(self.f_code.co_filename)
    return inline_call(self)


InliningInstructionTranslator.inline_call_ = noted


class Layer(torch.nn.Module):
    """Uses a weight as vLLM's layers do."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Any) -> Any:
        y = torch.nn.functional.linear(x.to(self.weight.dtype), self.weight) * self.weight.shape[0]
        return y + torch.nn.functional.embedding(torch.zeros(4, dtype=torch.int64), self.weight)


def traced(weight: Any) -> list[str]:
    files.clear()
    torch._dynamo.reset()
    torch.compile(Layer(weight).forward, fullgraph=True, backend="eager")(torch.zeros(4, 8))
    return sorted(files)


data = torch.empty(8, 8, dtype=torch.bfloat16)
ranks = dict.fromkeys(("get_tensor_model_parallel_rank", "get_tensor_model_parallel_world_size"), lambda: 1)
with mock.patch.multiple(parameter, **ranks):
    own = parameter.ModelWeightParameter(data=data, input_dim=1, output_dim=0, weight_loader=print)
plain = torch.nn.Parameter(data, requires_grad=False)
print(json.dumps({"own": traced(own), "plain": traced(plain), "file": parameter.__file__}))
