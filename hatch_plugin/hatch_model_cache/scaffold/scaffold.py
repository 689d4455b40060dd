"""A recipe project made of what is known of it: its files, checked before anything is written."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hatch_model_cache.compile import engines
from hatch_model_cache.recipe.checks import check
from hatch_model_cache.recipe.naming import slug
from hatch_model_cache.recipe.recipe import Recipe, config_files, options
from hatch_model_cache.scaffold import templating
from hatch_model_cache.targets import Target
from model_cache.errors import ModelCacheError, UsageError
from model_cache.wheel.names import printable

CONFIG, DRAFTS = "model", "drafts"
"""Directories in a project made here: with the model's config.json, with one directory for each speculative model."""

PIPELINES = {
    "docker": "a Dockerfile that builds the wheel in the serving image and adds it",
    "github": "a GitHub Actions workflow: build, sign, attest, publish",
    "gitlab": "a GitLab CI pipeline: build, sign, publish",
    "kserve": "a KServe InferenceService that starts warm",
    "kubernetes": "a Job that builds, and an init container that deploys",
    "ray-serve": "a Ray Serve application that starts warm",
}
"""What a project can be given besides its recipe; names of folders in templates/pipelines."""

WITH_IMAGE = ("kserve", "kubernetes")
"""Those that name the image that serves."""

_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?")
_MAX_CONFIG_FILE_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Project:
    """What a recipe project is to hold."""

    recipe: Recipe
    """Its `config` is where the files are now, absolute, or None."""
    version: str
    notes: tuple[str, ...] = ()
    """Said above `serve-args`, one line each."""
    pipelines: tuple[str, ...] = ()
    """Names in `PIPELINES`."""
    image: str | None = None
    """The image that serves; by default vLLM's own of the recipe's version."""

    @property
    def name(self) -> str:
        """Distribution name."""
        return self.recipe.distribution_name

    def table(self) -> dict[str, Any]:
        """The recipe as it is written: under TOML keys, with `config` inside the project."""
        values = self.recipe.as_dict()
        values["config"] = CONFIG if values["config"] is not None else None
        values["drafts"] = {name: f"{DRAFTS}/{slug(name)}" for name in values["drafts"]}
        return values

    def files(self) -> dict[str, bytes]:
        """Relative path -> content, sorted by path.

        Raises UsageError when the engine is none that serves, the templates' libraries are missing, or a file of the
        configuration cannot be read.
        """
        if self.recipe.engine_name not in engines.SERVERS:
            raise UsageError(f"no project is made for {self.recipe.engine}: it has no command that serves")
        values = self._template_values()
        rendered = templating.render_folder("recipe", values)
        for pipeline in self.pipelines:
            rendered |= templating.render_folder(f"pipelines/{pipeline}", values)
        found = {path: text.encode() for path, text in rendered.items()}
        return dict(sorted((found | self.configurations()).items()))

    def configurations(self) -> dict[str, bytes]:
        """The files of the model's configuration and of those of its speculative models, as `files` has them."""
        return {
            f"{place}/{name}": _content(path)
            for place, directory in self._directories()
            for name, path in config_files(directory)
        }

    def _directories(self) -> list[tuple[str, Path]]:
        """Directories in the project, and where their files are now."""
        found = [(CONFIG, self.recipe.config_dir)] if self.recipe.config_dir else []
        return found + [(f"{DRAFTS}/{slug(name)}", path) for name, path in self.recipe.draft_dirs.items()]

    def _template_values(self) -> dict[str, Any]:
        recipe = self.recipe
        words = [self._command(served) for served in recipe.served_as]
        first = recipe.load_targets()[0]
        gpu = first.device_name if isinstance(first, Target) else None
        return {
            **template_values(),
            "name": self.name,
            "version": self.version,
            "recipe": self.table(),
            "notes": self.notes,
            "command_words": words,
            "commands": [shlex.join(command) for command in words],
            "extras": "build" if recipe.config_dir else "build,hub",
            "image": self.image or f"vllm/vllm-openai:v{recipe.engine_version}",
            "gpus": len(engines.adapter(recipe.engine_name).expected_ranks(recipe.serve_args)) if gpu else 0,
            "gpu_product": gpu.replace(" ", "-") if gpu else None,  # as NVIDIA's feature discovery labels a node
        }

    def _command(self, served: str) -> list[str]:
        return [engines.adapter(self.recipe.engine_name).COMMAND, "serve", served, *self.recipe.serve_args]


def template_values() -> dict[str, Any]:
    """What every template is given: the versions of this tool and of the actions in workflows, and that a project has
    one recipe."""
    import tomllib

    import model_cache

    actions = tomllib.loads((templating.DIRECTORY / "actions.toml").read_text("utf-8"))
    return {"tool_version": model_cache.__version__, "actions": actions, "matrix": False}


def checked(
    table: Mapping[str, Any], words: Mapping[str, str], *, where: Path, version: str
) -> tuple[Recipe | None, list[str]]:
    """A recipe from options under their TOML keys, or the problems, each beginning with the user's word for the option.

    words: TOML key -> what the user wrote it as.
    where: directory that a relative `config` is in.
    """
    table = {key: value for key, value in table.items() if value not in (None, (), {})}
    problems = _not_unicode(table)
    if problems:
        return None, problems
    table = {key: list(value) if isinstance(value, tuple) else value for key, value in table.items()}
    if isinstance(table.get("config"), str):
        table["config"] = str((where / table["config"]).absolute())
    if isinstance(table.get("checkpoint"), str) and (where / table["checkpoint"]).is_dir():
        table["checkpoint"] = str((where / table["checkpoint"]).absolute())
    if isinstance(table.get("drafts"), Mapping):
        table["drafts"] = {
            name: str((where / path).absolute()) if isinstance(path, str) else path
            for name, path in table["drafts"].items()
        }
    values, problems = check(table, "", where)
    if not _VERSION.fullmatch(version):
        problems.append(f'.version: must be a public version, like "1.0.0", not {printable(version)!r}.')
    if problems:
        return None, [_in_words(problem, words) for problem in problems]
    return Recipe(**values), []


def write(files: Mapping[str, bytes], directory: Path) -> None:
    """Write a new project. Raises UsageError, and leaves nothing, if `directory` is in use or cannot be made."""
    require_unused(directory)
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    ours = [missing[-1]] if missing else [directory / top for top in {PurePosixPath(name).parts[0] for name in files}]
    try:
        for name, data in files.items():
            path = directory / PurePosixPath(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(data)
    except OSError as error:
        for place in ours:
            _take_away(place)
        where = printable(str(error.filename or directory))
        raise ModelCacheError(f"{where:.300}: cannot be written: {error.strerror}") from None


def _take_away(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


def require_unused(directory: Path) -> None:
    """Raise UsageError unless a project can be made in `directory`: it is not there, or empty."""
    shown = f"{printable(str(directory)):.300}"
    try:
        if directory.is_dir():
            if any(directory.iterdir()):
                raise UsageError(f"{shown} is not empty: give a new directory; nothing there is overwritten.")
        elif directory.exists() or directory.is_symlink():
            raise UsageError(f"{shown} is no directory: give a new one.")
    except (OSError, ValueError) as error:
        raise UsageError(f"{shown} cannot be used: {getattr(error, 'strerror', None) or error}") from None


def _content(path: Path) -> bytes:
    from model_cache.wheel import small_file

    try:
        return small_file.read(path, _MAX_CONFIG_FILE_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot be taken into the project: {error.strerror}") from None


def _not_unicode(table: Mapping[str, Any]) -> list[str]:
    """Arguments may hold bytes that are no text; TOML cannot."""
    return [
        f"{printable(text):.100}: is not valid Unicode, which a recipe cannot hold."
        for text in _texts(table.values())
        if any("\ud800" <= character <= "\udfff" for character in text)
    ]


def _texts(values: Any) -> Sequence[str]:
    found: list[str] = []
    for value in values:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, Mapping):
            found += [*value.keys(), *_texts(value.values())]
        elif isinstance(value, (list, tuple)):
            found += _texts(value)
    return found


def _in_words(problem: str, words: Mapping[str, str]) -> str:
    """`.targets[0]: …` as `--target: …`."""
    path, _, text = problem.removeprefix(".").partition(": ")
    key = re.split(r"[.\[]", path)[0]
    text = re.sub(r"`([a-z-]+)`", lambda match: words.get(match[1], match[0]), text)
    return f"{words.get(key, key)}: {text}"


def option_words() -> dict[str, str]:
    """How `model-cache new` calls the options of a recipe."""
    words = {option.key: f"--{option.key}" for option in options()}
    return words | {
        "version": "--version",
        "targets": "--target",
        "environment": "--env",
        "drafts": "--draft",
        "serve-args": "the command after --",
        "model": "the model in the command after --",
    }
