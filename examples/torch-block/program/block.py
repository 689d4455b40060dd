"""One block of a Llama-like model, as a program would have it in a module of its own."""

import torch
from torch import nn

WIDTH, INNER, HEADS = 256, 688, 4


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight


class Block(nn.Module):
    """Attention and a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.Parameter(torch.ones(WIDTH))
        self.before_mlp = nn.Parameter(torch.ones(WIDTH))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.shape[0]
        q, k, v = self.qkv(normed(x, self.before_attention)).view(tokens, 3, HEADS, -1).permute(1, 2, 0, 3)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(0, 1).reshape(tokens, WIDTH))
        gate, up = self.gate_up(normed(x, self.before_mlp)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


def make() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The factory: a module as the program makes it, and example inputs, dynamic dimensions marked."""
    x = torch.zeros(16, WIDTH)
    torch._dynamo.mark_dynamic(x, 0)
    return Block().eval(), (x,)
