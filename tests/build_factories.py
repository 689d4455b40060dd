"""Makes recipe projects and artifact directories. The payload is synthetic: no engine made these bytes."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hatch_model_cache import targets
from hatch_model_cache.recipe.file import load_recipe
from hatch_model_cache.recipe.recipe import Recipe

MODEL = "test-org/Synthetic-1B"
NAME = "model-cache-synthetic-1b-h100-sxm5-80gb"
PACKAGE = "model_cache_synthetic_1b_h100_sxm5_80gb"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64}

TABLE: dict[str, Any] = {
    "engine": "vllm==0.33.0",
    "model": MODEL,
    "config": "model",
    "served-as": [MODEL, "/models/synthetic"],
    "targets": ["h100-sxm5-80gb"],
    "serve-args": ["--max-num-batched-tokens", "8192", "--max-num-seqs", "1024"],
    "environment": {"VLLM_USAGE_SOURCE": "production-docker-image"},
}
"""A right recipe."""


def toml(value: Any) -> str:
    """`value` as TOML, for the few types that a recipe has."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def pyproject(
    table: Mapping[str, Any],
    *,
    name: str = NAME,
    version: str = "1.0.0",
    project: str = "",
    extra: str = "",
    requires: str = '["hatchling", "hatch-model-cache"]',
) -> str:
    """The text of a recipe's pyproject.toml; `project` are lines of [project], `extra` whole tables."""
    options = "\n".join(f"{key} = {toml(value)}" for key, value in table.items())
    return f"""\
[build-system]
requires = {requires}
build-backend = "hatchling.build"
[project]
name = "{name}"
version = "{version}"
requires-python = ">=3.11"
{project}
[tool.hatch.build.hooks.model-cache]
{options}
{extra}
"""


def make_project(directory: Path, table: Mapping[str, Any] = TABLE, **options: Any) -> Path:
    """Write a recipe project into `directory`, with a config directory `model`."""
    (directory / "model").mkdir(parents=True, exist_ok=True)
    (directory / "model/config.json").write_text(json.dumps(CONFIG))
    (directory / "model/tokenizer_config.json").write_text("{}")
    (directory / "pyproject.toml").write_text(pyproject(table, **options))
    return directory


def blob(seed: str, size: int = 3000) -> bytes:
    """A pickle of synthetic bytes that do not compress to nothing, the same for the same seed."""
    out = b""
    while len(out) < size:
        out += hashlib.sha256(f"{seed}{len(out)}".encode()).digest()
    return pickle.dumps(out[: 2 * size - len(pickle.dumps(out[:size]))])


def document(
    recipe: Recipe,
    *,
    ranks: Sequence[str] = ("0_0",),
    prefixes: Sequence[str] = ("backbone",),
    contains: Sequence[str] = ("pickle", "bytecode", "cubin"),
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """An artifacts.json for `recipe` and the bytes of its files (path in the artifact directory -> bytes)."""
    files: dict[str, bytes] = {}
    entries = []
    for target in recipe.targets:
        for prefix in prefixes:
            for served in recipe.served_as:
                key = hashlib.sha256(f"{target}{prefix}{served}".encode()).hexdigest()
                members = []
                for rank in ranks:
                    data = blob(f"{target}{prefix}{rank}")
                    source = f"files/{target}/{prefix}/rank_{rank}/model"
                    files[source] = data
                    members.append(member(f"rank_{rank}/model", source, data, contains))
                entries.append(
                    {
                        "directory": f"torch_compile_cache/torch_aot_compile/{key}",
                        "component": "vllm-aot",
                        "key": key,
                        "prefix": prefix,
                        "target": target,
                        "served_as": served,
                        "ranks": list(ranks),
                        "factors": target,
                        "factor_overrides": {"model.model": served},
                        "files": members,
                    }
                )
    return {
        "schema_version": 1,
        "recipe_digest": recipe.digest(),
        "engine": {
            "name": recipe.engine_name,
            "version": recipe.engine_version,
            "torch": "2.14.0+cu130",
            "triton": "3.8.0",
            "cuda": "13.0",
            "python": "3.11.7",
            "platform": "linux_x86_64",
        },
        "model": {
            "id": recipe.model,
            "revision": recipe.revision,
            "config_sha256": hashlib.sha256(json.dumps(CONFIG).encode()).hexdigest(),
            "architectures": CONFIG["architectures"],
            "served_as": list(recipe.served_as),
        },
        "targets": [targets.load(name).as_dict() for name in recipe.targets],
        "serve": {"arguments": list(recipe.serve_args), "environment": dict(recipe.environment)},
        "build": {
            "mode": "cross",
            "tool": "synthetic artifacts of the tests",
            "recipe_digest": recipe.digest(),
            "source": {"commit": "c" * 40, "dirty": True},
            "warnings": [],
            "checkpoint": None,
            "stand_ins": [{"site": "synthetic.py:1", "answer": "1", "count": 2}],
        },
        "host_answers": {"nvcc": None, "ninja": None, "flashinfer-python": "0.7.2"},
        "unkeyed": {"speculative.num_speculative_tokens": None},
        "factors": {name: {"model.dtype": "torch.bfloat16"} for name in recipe.targets},
        "entries": entries,
        "kernels": [
            {
                "name": "triton_poi_fused_synthetic",
                "sha256": hashlib.sha256(name.encode()).hexdigest(),
                "arch": targets.load(name).ptx_arch,
                "registers": 32,
                "shared": 0,
                "spills": 0,
                "configs": 1,
                "target": name,
                "lineage": None,
            }
            for name in recipe.targets
        ],
        "regions": [],
        "hints": {},
    }, files


def member(path: str, source: str, data: bytes, contains: Sequence[str] = ("json",)) -> dict[str, Any]:
    """One file of an entry as artifacts.json describes it."""
    return {
        "path": path,
        "source": source,
        "sha256": hashlib.sha256(data).hexdigest(),
        "size": len(data),
        "mode": "0644",
        "kind": "synthetic",
        "contains": list(contains),
    }


def write_artifacts(directory: Path, description: Mapping[str, Any], files: Mapping[str, bytes]) -> Path:
    """Write an artifact directory without any check."""
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    (directory / "logs/engine.log").write_text("synthetic log; never packed\n")
    (directory / "artifacts.json").write_text(json.dumps(description))
    return directory


def make_artifacts(directory: Path, project: Path, **options: Any) -> Path:
    """A right artifact directory for the recipe of `project`."""
    return write_artifacts(directory, *document(load_recipe(project), **options))
