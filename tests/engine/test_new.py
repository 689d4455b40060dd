"""What `model-cache new` writes, against the real vLLM: the defaults it spells out, and a project built as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hatch_model_cache import targets
from hatch_model_cache.checking import check
from hatch_model_cache.compiling.progress import Silent
from hatch_model_cache.recipe.recipe import Recipe
from hatch_model_cache.scaffold import serve_line

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "data" / "models" / "llama-tiny"


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("h100-sxm5-80gb", ()),
        ("a100-sxm4-80gb", ()),
        ("b200", ("--max-num-seqs", "4", "--max-model-len", "512")),
        ("l4", ("--max-num-batched-tokens", "128")),
    ],
)
def test_the_defaults_spelled_out_are_those_of_the_engine(
    target: str, arguments: tuple[str, ...], engine_python: str
) -> None:
    common = ("--skip-tokenizer-init", "--max-model-len", "512", *arguments)
    command = check.parse_command(["vllm", "serve", str(MODEL), *common])
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "HF_HUB_OFFLINE": "1"}
    record = targets.load(target).as_dict()
    seen = check.observe(command, record, engine_python, environment=environment, progress=Silent())
    [look_up] = seen.look_ups
    taken = {
        "--max-num-batched-tokens": look_up["factors"]["scheduler.max_num_batched_tokens"],
        "--max-num-seqs": look_up["factors"]["scheduler.max_num_seqs"],
    }
    asked = Recipe(engine="vllm==0.33.0", model="o/M", targets=(target,), serve_args=common)
    pins = serve_line.pinned(asked)[0].serve_args[len(common) :]
    assert pins
    for flag, value in zip(pins[::2], pins[1::2], strict=True):
        assert taken[flag] == value, flag


def test_a_new_project_is_compiled_and_built_as_it_is(engine_python: str, tmp_path: Path) -> None:
    new = ["new", "project", "--target", "h100-sxm5-80gb", "--engine", "vllm==0.33.0", "--config", str(MODEL)]
    line = ["--", "vllm", "serve", "example/llama-tiny", "--max-model-len", "512"]
    environment = {**os.environ, "MODEL_CACHE_PYTHON": engine_python}
    subprocess.run([sys.executable, "-m", "model_cache", *new, *line], cwd=tmp_path, check=True)
    project = tmp_path / "project"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(command, cwd=project, env=environment, check=True)
    [wheel] = (project / "dist").glob("*.whl")
    assert wheel.name.startswith("model_cache_llama_tiny_h100_sxm5_80gb-1.0.0-cp")
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if "/blobs/" in name]
