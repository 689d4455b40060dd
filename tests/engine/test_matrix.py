"""A matrix built with the real vLLM: two models, two GPUs and a variant give the wheels that were planned."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.verify import verify
from steady import command

pytestmark = pytest.mark.engine

MODELS = Path(__file__).resolve().parents[2] / "tests" / "data" / "models"
MATRIX = f"""
engines = ["vllm==0.33.0"]
targets = ["h100-sxm5-80gb", "a100-sxm4-80gb"]
[models."example/llama-tiny"]
config = "{MODELS}/llama-tiny"
serve-args = ["--max-model-len", "512"]
variants = ["default", "short"]
[models."example/qwen3-tiny"]
config = "{MODELS}/qwen3-tiny"
serve-args = ["--max-model-len", "512"]
[variants.short]
serve-args = ["--max-model-len", "256"]
[[exclude]]
variant = "short"
target = "h100-*"
[[exclude]]
model = "*/qwen3-tiny"
target = "a100-*"
"""
NAMES = {
    "model-cache-llama-tiny-h100-sxm5-80gb": ("8192", "1024"),
    "model-cache-llama-tiny-a100-sxm4-80gb": ("2048", "256"),
    "model-cache-llama-tiny-short-a100-sxm4-80gb": ("2048", "256"),
    "model-cache-qwen3-tiny-h100-sxm5-80gb": ("8192", "1024"),
}
"""Wheel -> tokens and sequences of a batch, which `vllm serve` takes by itself on such a GPU."""


def built(directory: Path, engine: str) -> dict[str, Any]:
    variables = {**os.environ, "MODEL_CACHE_PYTHON": engine}
    building = command("build", directory, "--jobs", "1", "--json")
    done = subprocess.run(building, env=variables, stdout=subprocess.PIPE, check=False, timeout=1500)
    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0, answer
    return answer


def test_a_matrix_of_real_wheels(engine_python: str, tmp_path: Path) -> None:
    (tmp_path / "matrix.toml").write_text(MATRIX)
    answer = built(tmp_path, engine_python)
    assert {wheel["name"]: wheel["state"] for wheel in answer["wheels"]} == dict.fromkeys(NAMES, "built")
    for wheel in answer["wheels"]:
        with WheelPayload(wheel["file"]) as payload:
            manifest = verify(payload).manifest
        assert {kernel.target for kernel in manifest.kernels} == {target.name for target in manifest.targets}
        [factors] = manifest.factors.values()
        taken = factors["scheduler.max_num_batched_tokens"], factors["scheduler.max_num_seqs"]
        assert taken == NAMES[wheel["name"]]
        assert factors["model.max_model_len"] == ("256" if "-short-" in wheel["name"] else "512")
    again = built(tmp_path, engine_python)
    assert {wheel["state"] for wheel in again["wheels"]} == {"up to date"}
    assert again["seconds"] < 10
