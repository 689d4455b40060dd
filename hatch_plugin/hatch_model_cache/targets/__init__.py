"""Hardware as data: one TOML file for each GPU and each kind of CPU, with the place every value comes from.

Standard library and ``model_cache.errors`` only: this package is also loaded inside the engine's interpreter.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_cache.errors import UsageError

from . import cpu, gpu
from .cpu import CpuTarget
from .description import KINDS, TargetFileError, choice_problems
from .gpu import DATA_FIELDS, Target

__all__ = [
    "DATA_FIELDS",
    "AnyTarget",
    "CpuTarget",
    "Target",
    "TargetFileError",
    "UnknownTarget",
    "from_mapping",
    "from_record",
    "load",
    "load_all",
    "load_file",
    "load_gpu",
    "load_gpus",
    "names",
]

AnyTarget = Target | CpuTarget
"""A GPU or a kind of CPU; `kind` tells them apart."""

_DIRECTORY = Path(__file__).parent


class UnknownTarget(UsageError, KeyError):  # noqa: N818 - the name is part of the public contract
    """No shipped target has this name; the message lists near ones."""

    def __init__(self, name: str) -> None:
        self.name = name
        near = _near(name.lower())
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known targets: {', '.join(names())}."
        super().__init__(f"Unknown target `{name}`. {hint} `model-cache targets list` shows all.")


def names() -> list[str]:
    """Names of all shipped targets, sorted."""
    return sorted(path.stem for path in _DIRECTORY.glob("*.toml"))


def _near(name: str) -> list[str]:
    longer = [known for known in names() if name and known.startswith(name)]  # `h100` means one of the h100-…
    return longer or difflib.get_close_matches(name, names(), n=3, cutoff=0.4)


def load(name: str) -> AnyTarget:
    """Return the shipped target ``name``.

    Raises:
        UnknownTarget: no file has this name.
        TargetFileError: the file is malformed.
    """
    if name not in names():  # a membership test, so that a name can never be a path
        raise UnknownTarget(name)
    return load_file(_DIRECTORY / f"{name}.toml")


def load_gpu(name: str) -> Target:
    """As `load`, for what only a GPU can be asked.

    Raises:
        UsageError: the target is a CPU.
    """
    target = load(name)
    if isinstance(target, CpuTarget):
        raise UsageError(f"`{name}` is a CPU, which is never pretended: run this on such a host.")
    return target


def load_all() -> dict[str, AnyTarget]:
    """Return all shipped targets by name, sorted.

    Raises:
        TargetFileError: a file is malformed.
    """
    return {name: load(name) for name in names()}


def load_gpus() -> dict[str, Target]:
    """As `load_all`, the GPUs only."""
    return {name: target for name, target in load_all().items() if isinstance(target, Target)}


def load_file(path: Path) -> AnyTarget:
    """Read one target file.

    Raises:
        TargetFileError: not TOML; a key missing, unknown or of the wrong type; a name other than the file's.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetFileError(f"Target file {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        raise TargetFileError(f"Target file {path} is not valid TOML: {error}.") from None
    target = from_mapping(data, where=str(path))
    if target.name != path.stem:
        raise TargetFileError(
            f"Target file {path}: `name` is `{target.name}`, but must equal the file's name `{path.stem}`."
        )
    return target


def from_record(record: Mapping[str, Any]) -> AnyTarget:
    """A target as a manifest or a job has it: checked before, and without its sources."""
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
    return CpuTarget(**values) if values["kind"] == "cpu" else Target(**values)


def from_mapping(data: Mapping[str, Any], *, where: str) -> AnyTarget:
    """Check ``data`` (a parsed target file) and return it as the target of its kind; ``where`` names it in messages.

    Raises:
        TargetFileError: with every problem found.
    """
    problems = choice_problems("kind", data, KINDS)
    if problems:
        raise TargetFileError(f"Target file {where} is malformed:", problems)
    return cpu.from_mapping(data, where=where) if data["kind"] == "cpu" else gpu.from_mapping(data, where=where)
