"""docs/reference.md says what the code does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_code_gives(reference: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert reference.PAGE.read_text("utf-8") == reference.page(), "run: python docs/reference.py"


def test_every_variable_is_told(reference: ModuleType) -> None:
    used = set()
    for path in (ROOT / "hatch_plugin").rglob("*.py"):
        used |= set(re.findall(r"[\"']\b(MODEL_CACHE_[A-Z_]+)\b[\"']", path.read_text("utf-8")))
    internal = {"MODEL_CACHE_REHEARSAL"}  # between a rehearsal and its engine
    assert used - internal == set(reference.VARIABLES)
