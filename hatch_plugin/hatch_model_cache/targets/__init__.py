"""GPU SKUs as data: one TOML file each, with the place every number comes from.

An engine asks the driver for these values while it compiles; with no GPU present the answers come from here.
Standard library and ``model_cache.errors`` only: this package is also loaded inside the engine's interpreter.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_cache.errors import UsageError

__all__ = [
    "DATA_FIELDS",
    "Target",
    "TargetFileError",
    "UnknownTarget",
    "from_mapping",
    "load",
    "load_all",
    "load_file",
    "names",
]

_DIRECTORY = Path(__file__).parent
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_CAPABILITY = re.compile(r"[1-9][0-9]*\.[0-9]")
_KINDS = ("gpu",)
_VENDORS = ("nvidia",)


class UnknownTarget(UsageError, KeyError):  # noqa: N818 - the name is part of the public contract
    """No shipped target has this name; the message lists near ones."""

    def __init__(self, name: str) -> None:
        self.name = name
        near = _near(name.lower())
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known targets: {', '.join(names())}."
        super().__init__(f"Unknown target `{name}`. {hint} `model-cache targets list` shows all.")


class TargetFileError(UsageError):
    """A target description is malformed; ``problems`` names every wrong key."""


@dataclass(frozen=True)
class Target:
    """One GPU SKU. Sizes are in bytes, clocks in kHz, all as ``cudaDeviceProp`` reports them."""

    name: str
    """Our name, equal to the file's name: ``h100-sxm5-80gb``."""
    kind: str
    """``gpu``."""
    device_name: str
    """What the driver reports, byte for byte. Part of the engine's cache key."""
    vendor: str
    compute_capability: str
    """``major.minor``: ``9.0``."""
    sm_count: int
    total_memory: int
    """Bytes. Differs by some MiB between driver versions, so two hosts of one SKU need not agree."""
    l2_cache_size: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    registers_per_multiprocessor: int
    """32-bit registers."""
    max_threads_per_multiprocessor: int
    max_threads_per_block: int
    warp_size: int
    clock_rate: int
    """Highest SM clock, kHz."""
    memory_clock_rate: int
    """Highest memory clock, kHz."""
    memory_bus_width: int
    """Bits."""
    unverified: tuple[str, ...] = ()
    """Fields without a citable source, or where sources disagree."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)
    """Field name to the place where its value comes from."""

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability as ``(major, minor)``."""
        major, minor = self.compute_capability.split(".")
        return int(major), int(minor)

    @property
    def sm(self) -> str:
        """Architecture without suffix: ``sm90``."""
        major, minor = self.capability
        return f"sm{major}{minor}"

    @property
    def ptx_arch(self) -> str:
        """What Triton assembles for: ``sm_80``, ``sm_90a``.

        Triton 3.8.0 (backends/nvidia/compiler.py, ``sm_arch_from_capability``) adds the ``a`` from 9.0 on.
        """
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    def as_dict(self, *, sources: bool = False) -> dict[str, Any]:
        """This target as JSON-ready values; ``sources`` stay out unless asked for, as in the manifest."""
        data: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data["unverified"] = list(self.unverified)
        if sources:
            data["sources"] = dict(self.sources)
        else:
            del data["sources"]
        return data


_TYPES: dict[str, type] = {
    f.name: int if f.type == "int" else str
    for f in dataclasses.fields(Target)
    if f.name not in ("unverified", "sources")
}

DATA_FIELDS: tuple[str, ...] = tuple(name for name in _TYPES if name not in ("name", "kind", "vendor"))
"""The fields that describe the device: each needs a source, or stands in ``unverified``."""


def names() -> list[str]:
    """Names of all shipped targets, sorted."""
    return sorted(path.stem for path in _DIRECTORY.glob("*.toml"))


def _near(name: str) -> list[str]:
    longer = [known for known in names() if name and known.startswith(name)]  # `h100` means one of the h100-…
    return longer or difflib.get_close_matches(name, names(), n=3, cutoff=0.4)


def load(name: str) -> Target:
    """Return the shipped target ``name``.

    Raises:
        UnknownTarget: no file has this name.
        TargetFileError: the file is malformed.
    """
    if name not in names():  # a membership test, so that a name can never be a path
        raise UnknownTarget(name)
    return load_file(_DIRECTORY / f"{name}.toml")


def load_all() -> dict[str, Target]:
    """Return all shipped targets by name, sorted.

    Raises:
        TargetFileError: a file is malformed.
    """
    return {name: load(name) for name in names()}


def load_file(path: Path) -> Target:
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


def from_mapping(data: Mapping[str, Any], *, where: str) -> Target:
    """Check ``data`` (a parsed target file) and return it as a Target; ``where`` names it in messages.

    Raises:
        TargetFileError: with every problem found.
    """
    known = {*_TYPES, "unverified", "sources"}
    problems = [f"`{key}`: unknown key" for key in data if key not in known]
    for key, kind in _TYPES.items():
        problems += _value_problems(key, kind, data)
    unverified, unverified_problems = _unverified(data.get("unverified", []))
    sources, source_problems = _sources(data.get("sources", {}))
    problems += unverified_problems + source_problems
    if not source_problems and not unverified_problems:
        problems += [
            f"`{key}`: has no line in [sources] and is not listed in `unverified`"
            for key in DATA_FIELDS
            if key in data and key not in sources and key not in unverified
        ]
    if problems:
        raise TargetFileError(f"Target file {where} is malformed:", problems)
    return Target(**{key: data[key] for key in _TYPES}, unverified=unverified, sources=sources)


def _value_problems(key: str, kind: type, data: Mapping[str, Any]) -> list[str]:
    if key not in data:
        return [f"`{key}`: missing"]
    value = data[key]
    if kind is int:
        if type(value) is not int or value <= 0:  # bool is an int, and 0 no device's answer
            return [f"`{key}`: must be a positive integer, not {value!r}"]
        return []
    if not isinstance(value, str) or not value or value != value.strip():
        return [f"`{key}`: must be a non-empty string without surrounding blanks, not {value!r}"]
    if key == "name" and not _NAME.fullmatch(value):
        return [f"`name`: must be lower-case words joined by `-`, not {value!r}"]
    if key == "compute_capability" and not _CAPABILITY.fullmatch(value):
        return [f'`compute_capability`: must look like "9.0", not {value!r}']
    if key == "kind" and value not in _KINDS:
        return [f"`kind`: must be one of {', '.join(_KINDS)}, not {value!r}"]
    if key == "vendor" and value not in _VENDORS:
        return [f"`vendor`: must be one of {', '.join(_VENDORS)}, not {value!r}"]
    return []


def _unverified(value: Any) -> tuple[tuple[str, ...], list[str]]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return (), [f"`unverified`: must be a list of field names, not {value!r}"]
    foreign = [item for item in value if item not in DATA_FIELDS]
    twice = sorted({item for item in value if value.count(item) > 1})
    problems = [f"`unverified`: `{item}` is no field that can be unverified" for item in foreign]
    problems += [f"`unverified`: `{item}` is listed twice" for item in twice]
    return tuple(value), problems


def _sources(value: Any) -> tuple[dict[str, str], list[str]]:
    """Expand a [sources] table, whose keys are one field name or several separated by blanks."""
    if not isinstance(value, dict):
        return {}, [f"`sources`: must be a table, not {value!r}"]
    sources: dict[str, str] = {}
    problems: list[str] = []
    for group, text in value.items():
        if not isinstance(text, str) or not text.strip():
            problems.append(f"`sources.{group}`: must be a non-empty string, not {text!r}")
            continue
        if not group.split():
            problems.append("`sources`: an empty key names no field")
        for key in group.split():
            if key not in DATA_FIELDS:
                problems.append(f"`sources.{group}`: `{key}` is no field that needs a source")
            elif key in sources:
                problems.append(f"`sources.{group}`: `{key}` has a source already")
            sources[key] = text
    return sources, problems
