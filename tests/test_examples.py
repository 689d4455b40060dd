"""The examples are right as they stand."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from hatch_model_cache.recipe.file import load_recipe

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = [ROOT / "examples" / "llama-tiny", ROOT / "examples" / "llama-3.1-8b"]


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name)
def test_a_recipe_shipped_here_can_be_built_as_it_is(project: Path) -> None:
    recipe = load_recipe(project)
    named = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]["name"]
    assert recipe.distribution_name == named
    assert not [warning for warning in recipe.warnings() if "serve-args" in warning]
