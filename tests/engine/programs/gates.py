"""Two kernels: of a norm, which every gate checks; of a sine, whose PTX keeps a table in local memory: unchecked."""

import torch
from torch import nn

WIDTH = 256
EPSILON = 1e-5


class Net(nn.Module):
    """A norm of some rows, and the sines of others."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, dtype=torch.bfloat16))

    def forward(self, rows: torch.Tensor, angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = rows.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)
        return normed.to(rows.dtype) * self.weight, angles.sin()


def make() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The factory."""
    rows = torch.zeros(16, WIDTH, dtype=torch.bfloat16, device="cuda")
    angles = torch.zeros(24, 64, device="cuda")
    torch._dynamo.mark_dynamic(rows, 0)
    torch._dynamo.mark_dynamic(angles, 0)
    return Net().cuda().eval(), (rows, angles)


def make_with_a_wrong_compiler() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The same, compiled by an Inductor that has a fault, which stands for a real one: it writes another epsilon."""
    from torch._inductor.codegen.triton import TritonKernelOverrides

    right = TritonKernelOverrides.constant.__func__

    def wrong(cls: type, value: float, dtype: torch.dtype) -> str:
        return right(cls, 4 * value if value == EPSILON else value, dtype)

    TritonKernelOverrides.constant = classmethod(wrong)
    return make()
