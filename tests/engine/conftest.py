"""Fixtures for the tests that need a real engine (marker `engine`). No engine is a failure, not a skip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
