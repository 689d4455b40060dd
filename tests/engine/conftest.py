"""Fixtures for the tests that need a real engine (marker `engine`). No engine is a failure, not a skip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.hosts import Host

ROOT = Path(__file__).resolve().parents[2]
ENGINE = "vllm-0.33.0"
VARIABLE = "MODEL_CACHE_TEST_ENGINE"


@pytest.fixture(scope="session")
def engine_python() -> str:
    """The interpreter that has vLLM: MODEL_CACHE_TEST_ENGINE, or the one that `make engines` has made."""
    python = Path(os.environ.get(VARIABLE) or ROOT / ".engines" / ENGINE / "bin" / "python")
    if not python.is_file():
        pytest.fail(f"no engine interpreter at {python}: run `make engines`, or set {VARIABLE}", pytrace=False)
    return str(python)


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
    sys.path.append(str(ROOT / "engines"))
    from prepare import prepare

    python = prepare(ENGINE, ROOT / ".engines" / "serving" / ENGINE)
    Host(python, Path()).pip_install(own_wheel)
    return python
