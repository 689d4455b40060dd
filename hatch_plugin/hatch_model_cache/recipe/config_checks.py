"""The checks of a recipe's directory with config files."""

from __future__ import annotations

import json
from pathlib import Path

from hatch_model_cache.recipe.recipe import config_files
from hatch_model_cache.recipe.toml_words import given
from model_cache.wheel import small_file

MAX_CONFIG_BYTES = 64 << 20
"""Size that a config.json may have; the largest known ones are some hundred kB."""


def problem(config: str, project: Path, *, with_json: bool = True) -> str | None:
    """Why `config` is no directory that a recipe in `project` can have; None when it is one.

    with_json: whether it has to hold config.json.
    """
    try:
        directory = (project / config).resolve()
        text = _directory_problem(config, directory, project) or (_json_problem(directory) if with_json else None)
        return text or _travel_problem(config, directory, project)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        return f"{config!r:.200} cannot be read: {getattr(error, 'strerror', None) or 'a loop of links'}."


def _directory_problem(config: str, directory: Path, project: Path) -> str | None:
    absolute = Path(config).is_absolute()
    if not absolute and not directory.is_relative_to(project):
        return (
            f"{config!r} leaves the project, so an sdist cannot carry it; "
            "copy it into the project or give an absolute path."
        )
    if directory == project:
        return f"{config!r} is the project itself; give the model's files a directory of their own."
    if not directory.is_dir():
        return f"{str(directory)!r} is no directory."
    return None


def _json_problem(directory: Path) -> str | None:
    file = directory / "config.json"
    try:
        content = json.loads(small_file.read(file, MAX_CONFIG_BYTES))
    except FileNotFoundError:
        return f"{str(directory)!r} holds no config.json."
    except OSError as error:
        return f"{str(file)!r} cannot be read: {error.strerror}."
    except (ValueError, RecursionError) as error:
        return f"{str(file)!r} is not valid JSON: {error}."
    if not isinstance(content, dict):
        return f"{str(file)!r} must hold a JSON object, not {given(content)}."
    return None


def _travel_problem(config: str, directory: Path, project: Path) -> str | None:
    if Path(config).is_absolute():
        return None
    outside = [name for name, path in config_files(directory) if _cannot_travel(path, project)]
    if outside:
        return (
            f"{', '.join(outside)} in {config!r}: a link that is absolute or leaves the project, "
            "so an sdist cannot carry it; put a copy in its place."
        )
    return None


def _cannot_travel(path: Path, project: Path) -> bool:
    if path.is_symlink() and path.readlink().is_absolute():
        return True
    return not path.resolve().is_relative_to(project)
