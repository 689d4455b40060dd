"""A vision transformer with the sizes of google/vit-base-patch16-224, which are the defaults of its configuration."""

import torch
from transformers import ViTConfig, ViTForImageClassification

LAYERS = 3


class Classes(torch.nn.Module):
    """Scores of 1,000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ViTForImageClassification(ViTConfig(num_hidden_layers=LAYERS, num_labels=1000))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model(pixel_values=pixels).logits


def make() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The factory: a batch of images."""
    pixels = torch.zeros(2, 3, 224, 224)
    torch._dynamo.mark_dynamic(pixels, 0)
    return Classes().eval(), (pixels,)
