"""Where a recipe is written, and the one way from there to a `Recipe`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hatch_model_cache.recipe import naming
from hatch_model_cache.recipe.checks import check
from hatch_model_cache.recipe.recipe import HOOK, WHERE, Recipe
from model_cache.errors import UsageError
from model_cache.wheel import small_file

__all__ = ["build_table", "find_table", "load_recipe", "parse", "project_version", "version_warnings"]


_MAX_BYTES = 16 << 20


_NAMING = ("model", "targets", "hardware", "variant", "name-with-org")
"""Options that the distribution's name follows from."""


def parse(table: Mapping[str, Any], *, where: str = WHERE, project_dir: Path | str, name: str | None = None) -> Recipe:
    """Check the hook's table and return it as a Recipe.

    table: what stands under `where` in the project's configuration.
    where: TOML path for messages.
    name: `project.name`, which must be what follows from the recipe; None where nothing is known of it.
    Raises UsageError that names every problem, each with its full TOML path.
    """
    project = Path(project_dir).resolve()
    values, problems = check(table, where, project)
    recipe = Recipe(**values, project_dir=project)
    named_right = not any(problem.startswith(tuple(f"{where}.{key}" for key in _NAMING)) for problem in problems)
    if name is not None and named_right and not naming.same_project(name, recipe.distribution_name):
        problems.append(
            f"project.name: is `{name}`; from the recipe's model and targets follows `{recipe.distribution_name}`."
        )
    if problems:
        raise UsageError(f"The recipe of {project} has {_count(problems)}:", problems)
    return recipe


def _count(problems: Sequence[str]) -> str:
    return "1 problem" if len(problems) == 1 else f"{len(problems)} problems"


def load_recipe(project_dir: Path | str) -> Recipe:
    """Read the recipe of a project the way hatchling does: pyproject.toml, overridden by hatch.toml.

    Raises UsageError when there is none, or when it is wrong.
    """
    table, where = find_table(Path(project_dir))
    return parse(table, where=where, project_dir=project_dir, name=_project_text(Path(project_dir), "name"))


def project_version(project_dir: Path) -> str | None:
    """`project.version`; None where it is dynamic. Raises UsageError when pyproject.toml cannot be read."""
    return _project_text(project_dir, "version")


def version_warnings(version: str) -> list[str]:
    """What a build should say aloud of a project's version."""
    if "+" not in version:
        return []
    return [f"project.version {version} has a local part (+…), which public indexes refuse."]


def _project_text(project_dir: Path, key: str) -> str | None:
    value = _subtable(_load_toml(project_dir / "pyproject.toml"), "project", key)
    return value if isinstance(value, str) else None


def find_table(project_dir: Path) -> tuple[Mapping[str, Any], str]:
    """The hook's table and its TOML path; the wheel target's own hook table wins, as in hatchling.

    Raises UsageError when a file cannot be read or no such table is in it.
    """
    build, prefix = build_table(project_dir)
    for path in (("targets", "wheel", "hooks", HOOK), ("hooks", HOOK)):
        table = _subtable(build, *path)
        if isinstance(table, Mapping):
            return table, ".".join((prefix, *path))
    raise UsageError(f"{project_dir / 'pyproject.toml'} holds no recipe: it has no table `{WHERE}`.")


def build_table(project_dir: Path) -> tuple[Any, str]:
    """hatchling's build table and its TOML path; one in hatch.toml replaces that of pyproject.toml.

    Raises UsageError when a file cannot be read.
    """
    pyproject = _load_toml(project_dir / "pyproject.toml")
    hatch_toml = project_dir / "hatch.toml"
    if hatch_toml.is_file():
        hatch = _load_toml(hatch_toml)
        if "build" in hatch:
            return hatch["build"], "build"
    return _subtable(pyproject, "tool", "hatch", "build"), "tool.hatch.build"


def _subtable(table: Any, *keys: str) -> Any:
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(small_file.read(path, _MAX_BYTES).decode("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist: give the directory of a recipe project.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"{path} is not valid TOML: it is nested too deeply.") from None
