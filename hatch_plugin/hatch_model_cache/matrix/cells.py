"""The cells of a matrix: one recipe project, and so one wheel, for each model × hardware × engine × variant."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from hatch_model_cache.recipe.checks import speculative_models
from hatch_model_cache.recipe.naming import hardware_name
from hatch_model_cache.recipe.recipe import Recipe
from hatch_model_cache.scaffold import serve_line, templating
from hatch_model_cache.scaffold.scaffold import Project, checked
from hatch_model_cache.targets import load as load_target
from model_cache.errors import NotFoundError, UsageError
from model_cache.wheel.names import normalize

from .matrix_file import DEFAULT, Matrix, Model, Settings


@dataclass(frozen=True)
class Cell:
    """One wheel that there is to be."""

    project: Project
    variant: str

    @property
    def recipe(self) -> Recipe:
        """What is compiled."""
        return self.project.recipe

    @property
    def name(self) -> str:
        """Distribution name."""
        return self.project.name

    @property
    def version(self) -> str:
        """The wheel's."""
        return self.project.version

    @property
    def identifier(self) -> str:
        """`NAME==VERSION`: unique in a matrix, and what `--only` and pip take."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class _Place:
    """A place in the matrix, before it is known to make a right recipe."""

    model: Model
    target: str
    engine: str
    variant: str

    def __str__(self) -> str:
        return f"{self.model.name} × {self.target} × {self.engine} × {self.variant}"

    def matches(self, rule: Mapping[str, str]) -> bool:
        values = {"model": self.model.name, "target": self.target, "engine": self.engine, "variant": self.variant}
        return all(fnmatchcase(values[axis], pattern) for axis, pattern in rule.items())


def cells(matrix: Matrix) -> list[Cell]:
    """All cells, sorted by model, hardware, engine and variant as the file has them.

    Raises UsageError with every problem: combinations that make no right recipe, two wheels of one name and version,
    rules that match nothing.
    """
    problems: list[str] = []
    places = _places(matrix, problems)
    found: list[Cell] = []
    for place in places:
        cell, wrong = _cell(matrix, place)
        problems += wrong
        found += [cell] if cell else []
    problems += _same_wheels(found)
    if problems:
        raise UsageError("The matrix cannot be built:", list(dict.fromkeys(problems)))
    return found


def chosen(found: Sequence[Cell], patterns: Sequence[str]) -> list[Cell]:
    """The cells that one of the patterns names: `NAME`, `NAME==VERSION`, both with `*`; all without patterns.

    Raises NotFoundError for patterns that name none.
    """
    for pattern in patterns:
        if not any(_named(cell, pattern) for cell in found):
            raise NotFoundError(f"--only {pattern}: the matrix has no such wheel; `model-cache matrix plan` lists them")
    return [cell for cell in found if not patterns or any(_named(cell, pattern) for pattern in patterns)]


def _named(cell: Cell, pattern: str) -> bool:
    name, equals, version = pattern.partition("==")
    return fnmatchcase(normalize(cell.name), normalize(name)) and (not equals or fnmatchcase(cell.version, version))


def _places(matrix: Matrix, problems: list[str]) -> list[_Place]:
    found = [
        _Place(model, target, engine, variant)
        for model in matrix.models
        for target, engine, variant in itertools.product(model.targets, model.engines, model.variants)
    ]
    for index, rule in enumerate(matrix.exclude):
        kept = [place for place in found if not place.matches(rule)]
        if len(kept) == len(found):
            problems.append(f"exclude[{index}]: matches nothing that an earlier rule has left.")
        found = kept
    models = {model.name: model for model in matrix.models}
    for index, rule in enumerate(matrix.include):
        model = models[rule["model"]]
        engines = [rule["engine"]] if "engine" in rule else model.engines
        for engine in engines:
            place = _Place(model, rule["target"], engine, rule.get("variant", DEFAULT))
            if place in found:
                problems.append(f"include[{index}]: {place} is in the matrix already.")
            found.append(place)
    return found


def _cell(matrix: Matrix, place: _Place) -> tuple[Cell | None, list[str]]:
    model = place.model
    names = matrix.hardware.get(place.target, (place.target,))
    variant = matrix.variants.get(place.variant, Settings())
    parts = (matrix.settings, model.settings, variant)
    arguments = merged(*(part.serve_args for part in parts))
    table: dict[str, Any] = {
        **model.options,
        "engine": place.engine,
        "model": model.name,
        "targets": names,
        "serve-args": arguments,
        "environment": {name: value for part in parts for name, value in part.environment.items()},
        "variant": None if place.variant == DEFAULT else place.variant,
    }
    if "drafts" in table:  # what another variant names is not this one's
        named = set(speculative_models(arguments))
        table["drafts"] = {name: path for name, path in table["drafts"].items() if name in named}
    if place.target in matrix.hardware and hardware_name([load_target(name) for name in names]) != place.target:
        table["hardware"] = place.target
    version = model.version.replace("{engine}", place.engine.partition("==")[2].partition("+")[0])
    recipe, problems = checked(table, {}, where=matrix.directory, version=version)
    if recipe is None:
        return None, [f"{place}: {problem}" for problem in problems]
    recipe, notes = serve_line.pinned(recipe)
    return Cell(Project(recipe=recipe, version=version, notes=notes), place.variant), []


def merged(*sets: Sequence[str]) -> list[str]:
    """Arguments of several sets in one: a flag that a later set has replaces that of the earlier ones."""
    found: list[list[str]] = []
    for arguments in sets:
        groups = templating.grouped(arguments)
        flags = {_flag(group) for group in groups}
        found = [group for group in found if _flag(group) not in flags] + groups
    return [word for group in found for word in group]


def _flag(group: Sequence[str]) -> str:
    flag = group[0].partition("=")[0]
    return flag.replace("_", "-") if flag.startswith("--") else flag


def _same_wheels(found: Sequence[Cell]) -> Iterator[str]:
    seen: dict[str, Cell] = {}
    for cell in found:
        other = seen.setdefault(f"{normalize(cell.name)}=={cell.version}", cell)
        if other is not cell:
            what = "engines" if other.recipe.engine != cell.recipe.engine else "recipes"
            yield (
                f"{cell.identifier}: two {what} give this one wheel ({other.recipe.engine} and {cell.recipe.engine}); "
                'tell them apart by a variant, or by a version like "{engine}.1".'
            )
