from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hatch_model_cache.recipe import hub_config
from model_cache.errors import ModelCacheError, UsageError


def hub(monkeypatch: pytest.MonkeyPatch, names: list[str], error: Exception | None = None) -> list[dict[str, Any]]:
    """Stand a Hub with `names` in for the real one; the choice among them is huggingface_hub's own."""
    from huggingface_hub.utils import filter_repo_objects

    calls = []

    def snapshot_download(model: str, **options: Any) -> str:
        calls.append({"model": model, **options})
        if error:
            raise error
        patterns = {key: options[key] for key in ("allow_patterns", "ignore_patterns")}
        for name in filter_repo_objects(names, **patterns):
            path = Path(options["local_dir"]) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
        return str(options["local_dir"])

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    return calls


def test_small_files_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted = {
        "config.json",
        "generation_config.json",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer.model",
        "merges.txt",
        "chat_template.jinja",
        "qwen.tiktoken",
    }
    others = {
        "model-00001-of-00004.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "consolidated.00.pth",
        "original/params.json",
        "modeling_custom.py",
        "onnx/config.json",
        "README.md",
        ".gitattributes",
    }
    calls = hub(monkeypatch, sorted(wanted | others))
    assert hub_config.fetch("org/M", "abc", tmp_path) == tmp_path
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == wanted
    assert (calls[0]["model"], calls[0]["revision"]) == ("org/M", "abc")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=r"install hatch-model-cache\[hub\]"):
        hub_config.fetch("org/M", None, tmp_path)


def test_no_such_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub(monkeypatch, [], OSError("404 Client Error\nlong explanation"))
    with pytest.raises(ModelCacheError) as caught:
        hub_config.fetch("org/M", "abc", tmp_path)
    assert str(caught.value) == ("The configuration of org/M at abc cannot be fetched from the Hub: 404 Client Error")


def test_a_repository_without_a_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub(monkeypatch, ["tokenizer.json"])
    with pytest.raises(ModelCacheError, match=r"org/M at its newest revision holds no config\.json"):
        hub_config.fetch("org/M", None, tmp_path)
