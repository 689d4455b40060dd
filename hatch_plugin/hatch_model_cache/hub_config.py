"""A model's configuration: the recipe's directory, or its small files from the Hub. Never weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from model_cache.errors import ModelCacheError, UsageError

if TYPE_CHECKING:
    from .recipe import Recipe

ALLOW = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
"""Configuration, tokenizer and processor files."""

IGNORE = ("*.index.json", "consolidated*", "original/*", "onnx/*", "*/checkpoint*", ".*")


def config_directory(recipe: Recipe, scratch: Path) -> Path:
    """The directory with the model's config.json.

    scratch: where fetched files go, when the recipe has no `config`. Raises as `fetch` does.
    """
    return recipe.config_dir or fetch(recipe.model, recipe.revision, scratch)


def fetch(model: str, revision: str | None, into: Path) -> Path:
    """Download the small files of Hub model `model` at `revision` (None: the newest) into directory `into`.

    Raises UsageError when huggingface_hub is missing, ModelCacheError when the Hub gives no config.json.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UsageError(
            f"The recipe has no `config`, and fetching config.json of {model} needs huggingface_hub: "
            "install hatch-model-cache[hub], or put the model's config.json and tokenizer files into a "
            "directory and name it in `config`."
        ) from None
    where = f"{model} at {revision or 'its newest revision'}"
    try:
        snapshot_download(
            model,
            revision=revision,
            local_dir=into,
            allow_patterns=list(ALLOW),
            ignore_patterns=list(IGNORE),
        )
    except Exception as error:  # many kinds: network, HTTP, gated, validation
        reason = str(error).strip().splitlines()
        raise ModelCacheError(
            f"The configuration of {where} cannot be fetched from the Hub: {reason[0] if reason else error!r}"
        ) from None
    if not (into / "config.json").is_file():
        raise ModelCacheError(f"{where} holds no config.json on the Hub.")
    return into
