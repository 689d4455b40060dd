"""A Qwen3 of transformers, with the ratios of Qwen3-0.6B at a quarter of its width."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

CONFIG = Qwen3Config(
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=128,
    vocab_size=4096,
    max_position_embeddings=40960,
    rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
    tie_word_embeddings=True,
)


class Logits(torch.nn.Module):
    """Logits for a prompt, without a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Qwen3ForCausalLM(CONFIG)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def make() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The factory: one prompt of any length."""
    tokens = torch.ones(1, 32, dtype=torch.int64)
    torch._dynamo.mark_dynamic(tokens, 1)
    return Logits().eval(), (tokens,)
