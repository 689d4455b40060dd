"""A Llama of transformers, from the configuration beside this file; on a GPU if there is one, else on the CPU."""

import json
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = 256


class Logits(torch.nn.Module):
    """Logits for a prompt, without a cache."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.model = LlamaForCausalLM(config)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def make() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The factory of the recipe."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = LlamaConfig(**json.loads((Path(__file__).parent / "config.json").read_text("utf-8")))
    with torch.device(device):
        module = Logits(config).to(torch.bfloat16).eval()
        tokens = torch.zeros(1, TOKENS, dtype=torch.int64)
    torch._dynamo.mark_dynamic(tokens, 1)
    return module, (tokens,)
