"""`matrix.toml`: its strict reader. Every problem is told at once, with its TOML path."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hatch_model_cache import targets
from hatch_model_cache.recipe import checks as recipe_checks
from hatch_model_cache.recipe.recipe import options
from model_cache.errors import UsageError
from model_cache.wheel import small_file
from model_cache.wheel.names import printable

FILE_NAME = "matrix.toml"
DEFAULT = "default"
"""The variant that adds nothing, and no word to a name."""

_Check = Callable[[str], str | None]
"""What is wrong with a name, in words; None if nothing is."""

_MAX_BYTES = 16 << 20
_SHARED = ("serve-args", "environment")
_OWN = ("engine", "model", "targets", "python", "hardware", "variant")
"""Options of a recipe that follow from the place in the matrix, or from the machine."""
_MODEL_OPTIONS = tuple(option.key for option in options() if option.key not in _OWN)
_TOP = ("version", "engines", "targets", *_SHARED, "models", "variants", "hardware", "include", "exclude")
_AXES = ("model", "target", "engine", "variant")
_VERSION = re.compile(r"(\{engine\}|[0-9]+)([.](\{engine\}|[0-9]+))*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Settings:
    """Arguments and variables that are given to many wheels."""

    serve_args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """A model, and where and how it is to be served. Empty axes are those of the whole matrix."""

    name: str
    options: Mapping[str, Any]
    """Of a recipe, under their TOML keys: revision, config, served-as, …"""
    settings: Settings
    version: str
    engines: tuple[str, ...]
    targets: tuple[str, ...]
    """Names of targets or of groups in `Matrix.hardware`."""
    variants: tuple[str, ...]


@dataclass(frozen=True)
class Matrix:
    """What is written in the file, all names known to exist."""

    directory: Path
    settings: Settings
    models: tuple[Model, ...]
    variants: Mapping[str, Settings]
    hardware: Mapping[str, tuple[str, ...]]
    """Group -> targets that share one wheel."""
    include: tuple[Mapping[str, str], ...]
    exclude: tuple[Mapping[str, str], ...]


def load(path: Path) -> Matrix:
    """Read `path`, or the matrix.toml in it. Raises UsageError with every problem."""
    file = path / FILE_NAME if path.is_dir() else path
    shown = f"{printable(str(file)):.300}"
    try:
        table = tomllib.loads(small_file.read(file, _MAX_BYTES).decode("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{shown} does not exist: give a matrix, or the directory with one.") from None
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown} is not valid TOML: {error or 'it is nested too deeply'}") from None
    return parse(table, file.parent.resolve(), shown)


def parse(table: Mapping[str, Any], directory: Path, shown: str = FILE_NAME) -> Matrix:
    """Check a matrix's table. Raises UsageError with every problem.

    directory: what a relative `config` is in. shown: how the file is called in the error.
    """
    reader = _Reader(table, directory)
    matrix = reader.matrix()
    if reader.problems:
        count = len(reader.problems)
        raise UsageError(f"{shown} has {count} problem{'s' if count > 1 else ''}:", reader.problems)
    return matrix


def key_path(*keys: str) -> str:
    """A TOML path, with quotes where TOML needs them: `models."Qwen/Qwen3-8B"`."""
    return ".".join(key if _BARE_KEY.fullmatch(key) else f'"{printable(key)}"' for key in keys)


class _Reader:
    def __init__(self, table: Mapping[str, Any], directory: Path) -> None:
        self.table = table
        self.directory = directory
        self.problems: list[str] = []

    def problem(self, path: str, text: str) -> None:
        self.problems.append(f"{path}: {text}")

    def matrix(self) -> Matrix:
        self.unknown_keys(self.table, _TOP, "")
        hardware = self.hardware()
        variants = {
            name: self.settings(inner, key_path("variants", name))
            for name, inner in self.tables("variants")
            if self.is_word(name, key_path("variants", name))
        }
        axes = {
            "engines": self.names(self.table, "", "engines", self.engine_problem),
            "targets": self.names(self.table, "", "targets", lambda name: self.target_problem(name, hardware)),
            "variants": (DEFAULT,),
        }
        settings = self.settings({key: self.table[key] for key in _SHARED if key in self.table}, "")
        version = self.version(self.table, "") or "1.0.0"
        models = tuple(
            self.model(name, inner, version, axes, hardware, variants) for name, inner in self.tables("models")
        )
        if not models and "models" not in self.table:
            self.problem("models", 'is required and missing: one table for each model, like [models."org/Model"].')
        known = {"model": [m.name for m in models], "variant": [DEFAULT, *variants]}
        return Matrix(
            self.directory,
            settings,
            models,
            variants,
            hardware,
            self.rules("include", known, hardware),
            self.rules("exclude", known, hardware),
        )

    def unknown_keys(self, table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
        for key in table:
            if key not in known:
                near = difflib.get_close_matches(key.replace("_", "-").lower(), known, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}."
                self.problem(_under(where, key), f"unknown key; {hint}")

    def tables(self, key: str) -> list[tuple[str, Mapping[str, Any]]]:
        """The tables in the table `key`."""
        outer = self.table.get(key, {})
        if not isinstance(outer, Mapping) or (not outer and key in self.table):
            self.problem(key, f"must be a table of tables, like [{key}.NAME].")
            return []
        found = []
        for name, inner in outer.items():
            if isinstance(inner, Mapping):
                found.append((name, inner))
            else:
                self.problem(key_path(key, name), "must be a table.")
        return found

    def names(self, table: Mapping[str, Any], where: str, key: str, check: _Check) -> tuple[str, ...]:
        """The list of names under `key`; empty when it is not there."""
        value = table.get(key, [])
        path = _under(where, key)
        if not isinstance(value, list) or (key in table and not value):
            self.problem(path, "must be a list of strings that is not empty.")
            return ()
        good: list[str] = []
        for index, item in enumerate(value):
            text = check(item) if isinstance(item, str) else "must be a string."
            if item in good:
                text = f"{item!r} is listed twice."
            if text:
                self.problem(f"{path}[{index}]", text)
            else:
                good.append(item)
        return tuple(good)

    def engine_problem(self, engine: str) -> str | None:
        return self.first(recipe_checks.check({"engine": engine}, "", self.directory)[1], ".engine")

    def target_problem(self, name: str, hardware: Mapping[str, Any]) -> str | None:
        if name in hardware:
            return None
        return self.first(recipe_checks.check({"targets": [name]}, "", self.directory)[1], ".targets[0]")

    def first(self, problems: Sequence[str], path: str) -> str | None:
        """The text of the first problem that is at `path`."""
        texts = [problem.removeprefix(f"{path}: ") for problem in problems if problem.startswith(f"{path}: ")]
        return texts[0] if texts else None

    def hardware(self) -> dict[str, tuple[str, ...]]:
        outer = self.table.get("hardware", {})
        if not isinstance(outer, Mapping):
            self.problem("hardware", 'must be a table of lists, like hopper = ["h100-sxm5-80gb", "h200"].')
            return {}
        found = {}
        for name in outer:
            path = key_path("hardware", name)
            if name in targets.names():
                self.problem(path, "is the name of a target; give the group another.")
            elif self.is_word(name, path):
                found[name] = self.names(outer, "hardware", name, lambda target: self.target_problem(target, {}))
        return found

    def is_word(self, name: str, path: str) -> bool:
        text = self.first(recipe_checks.check({"variant": name}, "", self.directory)[1], ".variant")
        if name == DEFAULT:
            text = f"{DEFAULT!r} is the variant that adds nothing."
        if text:
            self.problem(path, text)
        return not text

    def settings(self, table: Mapping[str, Any], where: str) -> Settings:
        self.unknown_keys(table, _SHARED, where)
        values = self.recipe_options({key: table[key] for key in _SHARED if key in table}, where)
        return Settings(values["serve_args"], values["environment"])

    def recipe_options(self, table: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The options of `table`, checked as those of a recipe."""
        apart = dict(table)
        self.drafts(apart.pop("drafts", {}), where)
        values, problems = recipe_checks.check(apart, where, self.directory)
        paths = tuple(f"{where}.{key}" for key in apart)
        # what a recipe needs, and a part of one need not have, is no problem here
        self.problems += [problem.removeprefix(".") for problem in problems if problem.startswith(paths)]
        return values

    def drafts(self, drafts: Any, where: str) -> None:
        """Each by itself, as if arguments named it: a variant's may, and only a wheel has all arguments together."""
        tables: list[tuple[Any, list[str]]] = [(drafts, [])]
        if isinstance(drafts, Mapping):
            tables = [
                ({name: path}, ["--speculative-config", json.dumps({"model": name})]) for name, path in drafts.items()
            ]
        for table, arguments in tables:
            _, problems = recipe_checks.check({"drafts": table, "serve-args": arguments}, where, self.directory)
            self.problems += [problem for problem in problems if problem.startswith(f"{where}.drafts")]

    def version(self, table: Mapping[str, Any], where: str) -> str | None:
        value = table.get("version")
        if value is not None and not (isinstance(value, str) and _VERSION.fullmatch(value)):
            self.problem(
                _under(where, "version"),
                'must be a public version, like "1.0.0" or "{engine}.1", where {engine} is the engine\'s.',
            )
            return None
        return value

    def model(
        self,
        name: str,
        table: Mapping[str, Any],
        version: str,
        axes: Mapping[str, tuple[str, ...]],
        hardware: Mapping[str, Any],
        variants: Mapping[str, Any],
    ) -> Model:
        where = key_path("models", name)
        own = ("version", "engines", "targets", "variants")
        self.unknown_keys(table, (*own, *_MODEL_OPTIONS), where)
        given = {key: table[key] for key in _MODEL_OPTIONS if key in table}
        if "config" not in given and "revision" not in given:
            self.problem(where, "needs `config` (a directory with config.json) or `revision` (a commit on the Hub).")
        values = self.recipe_options({"model": name, **given}, where)
        checks = {
            "engines": self.engine_problem,
            "targets": lambda target: self.target_problem(target, hardware),
            "variants": lambda variant: _near(variant, [DEFAULT, *variants]),
        }
        chosen = {}
        for key, check in checks.items():
            chosen[key] = self.names(table, where, key, check) or axes[key]
            if not chosen[key] and key not in table and key not in self.table:
                self.problem(_under(where, key), f"is missing, and the matrix has no `{key}` for all models.")
        return Model(
            name,
            {key: given[key] for key in given if key not in _SHARED},
            Settings(values["serve_args"], values["environment"]),
            self.version(table, where) or version,
            **chosen,
        )

    def rules(
        self, key: str, known: Mapping[str, Sequence[str]], hardware: Mapping[str, Any]
    ) -> tuple[Mapping[str, str], ...]:
        """`[[include]]` or `[[exclude]]`; only the latter may have patterns."""
        value = self.table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            self.problem(key, f"must be tables, like [[{key}]].")
            return ()
        for index, rule in enumerate(value):
            where = f"{key}[{index}]"
            self.unknown_keys(rule, _AXES, where)
            if not rule:
                self.problem(where, f"is empty: give {', '.join(_AXES)}, or some of them.")
            for axis, name in rule.items():
                text = None if isinstance(name, str) else "must be a string."
                if not text and key == "include":
                    checks: dict[str, _Check] = {
                        "engine": self.engine_problem,
                        "target": lambda target: self.target_problem(target, hardware),
                    }
                    text = checks[axis](name) if axis in checks else _near(name, known.get(axis, [name]))
                if text:
                    self.problem(f"{where}.{axis}", text)
            missing = [axis for axis in ("model", "target") if key == "include" and axis not in rule]
            if missing:
                self.problem(where, f"needs {' and '.join(missing)}.")
        return tuple(value)


def _near(name: str, known: Sequence[str]) -> str | None:
    if name in known:
        return None
    near = difflib.get_close_matches(name, known, n=1)
    return f"there is no {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}.")


def _under(where: str, key: str) -> str:
    return f"{where}.{key_path(key)}" if where else key_path(key)
