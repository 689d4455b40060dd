"""Fixtures for the tests that need a real engine (marker `engine`). No engine is a failure, not a skip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shown
from engine import cpu_hosts
from engine.hosts import serving_environment

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "data" / "models"
ENGINE = "vllm-0.33.0"
VARIABLE = "MODEL_CACHE_TEST_ENGINE"
CPU_VARIABLE = "MODEL_CACHE_TEST_CPU_ENGINE"
CPU_WHEEL = "MODEL_CACHE_TEST_CPU_WHEEL"


@pytest.fixture(scope="session")
def engine_python() -> str:
    """The interpreter that has vLLM: MODEL_CACHE_TEST_ENGINE, or the one that `make engines` has made."""
    return _interpreter(ENGINE, VARIABLE)


@pytest.fixture(scope="session")
def cpu_engine_python() -> str:
    """The interpreter that has vLLM for CPUs: MODEL_CACHE_TEST_CPU_ENGINE, or the one that `make engines` has made."""
    return _interpreter(cpu_hosts.ENGINE, CPU_VARIABLE)


def _interpreter(engine: str, variable: str) -> str:
    python = Path(os.environ.get(variable) or ROOT / ".engines" / engine / "bin" / "python")
    if not python.is_file():
        pytest.fail(f"no engine interpreter at {python}: run `make engines`, or set {variable}", pytrace=False)
    return str(python)


@pytest.fixture(scope="session")
def cpu_example(
    cpu_engine_python: str, own_wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[shown.Ran]]:
    """The wheel of examples/llama-tiny-cpu, built for this machine's CPU as docs/guides/cpu.md shows it; what the
    commands have printed."""
    clone = tmp_path_factory.mktemp("cpu") / "clone"
    project = clone / "examples/llama-tiny-cpu"
    shutil.copytree(ROOT / "examples/llama-tiny-cpu", project)
    recipe = project / "pyproject.toml"
    recipe.write_text(recipe.read_text().replace("x86-64-avx512", cpu_hosts.here()))
    ran = shown.run(
        shown.commands(
            "cpu.md",
            "model-cache targets probe",
            "export MODEL_CACHE_PYTHON",
            "cd examples/llama-tiny-cpu",
            "model-cache compile",
            "python -m build --wheel",
        ),
        clone,
        swap={"/path/to/the/engines/python": cpu_engine_python},
        HOME=os.environ["HOME"],
        PIP_FIND_LINKS=str(own_wheel.parent),
    )
    [wheel] = (project / "dist").iterdir()
    return wheel, ran


@pytest.fixture(scope="session")
def cpu_wheel(request: pytest.FixtureRequest) -> Path:
    """The wheel of `cpu_example`; MODEL_CACHE_TEST_CPU_WHEEL names one that is there already."""
    if ready := os.environ.get(CPU_WHEEL):
        return Path(ready)
    wheel: Path = request.getfixturevalue("cpu_example")[0]
    return wheel


@pytest.fixture(scope="session")
def own_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This project's wheel."""
    dist = tmp_path_factory.mktemp("own")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(dist), str(ROOT)], check=True)
    [wheel] = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def serving(engine_python: str, own_wheel: Path) -> Path:
    """A second environment with the same engine at another path, as a serving host has it."""
    return serving_environment(ENGINE, own_wheel)
