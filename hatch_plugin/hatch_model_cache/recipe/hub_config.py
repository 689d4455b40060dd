"""A model's configuration from the Hub: its small files, never weights."""

from __future__ import annotations

from pathlib import Path

from model_cache.errors import ModelCacheError, UsageError

ALLOW = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
"""Configuration, tokenizer and processor files."""

IGNORE = ("*.index.json", "consolidated*", "original/*", "onnx/*", "*/checkpoint*", ".*")


def fetch(model: str, revision: str | None, into: Path | None = None) -> Path:
    """Download the small files of Hub model `model` at `revision` (None: the newest).

    into: a directory for them; by default huggingface_hub's own cache. Returns where config.json is.
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
        directory = Path(
            snapshot_download(
                model,
                revision=revision,
                local_dir=into,
                allow_patterns=list(ALLOW),
                ignore_patterns=list(IGNORE),
            )
        )
    except Exception as error:  # many kinds: network, HTTP, gated, validation
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise ModelCacheError(f"The configuration of {where} cannot be fetched from the Hub: {reason}") from None
    if not (directory / "config.json").is_file():
        raise ModelCacheError(f"{where} holds no config.json on the Hub.")
    return directory
