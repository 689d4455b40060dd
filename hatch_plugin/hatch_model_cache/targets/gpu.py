"""A GPU SKU as data. An engine asks the driver for these values while it compiles; with no GPU they answer instead."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .description import (
    TargetFileError,
    choice_problems,
    expand_sources,
    name_problems,
    text_problems,
    unknown_keys,
    without_source,
)

_CAPABILITY = re.compile(r"[1-9][0-9]*\.[0-9]")
_VENDORS = ("nvidia",)


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
    def architecture(self) -> str:
        """What several targets may have in common: ``sm90``."""
        return self.sm

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


def from_mapping(data: Mapping[str, Any], *, where: str) -> Target:
    """Check ``data`` (a parsed target file of kind ``gpu``) and return it; ``where`` names it in messages.

    Raises:
        TargetFileError: with every problem found.
    """
    problems = unknown_keys(data, {*_TYPES, "unverified", "sources"})
    for key, kind in _TYPES.items():
        problems += _value_problems(key, kind, data)
    unverified, unverified_problems = _unverified(data.get("unverified", []))
    sources, source_problems = expand_sources(data.get("sources", {}), DATA_FIELDS)
    problems += unverified_problems + source_problems
    if not source_problems and not unverified_problems:
        doubtless = [key for key in DATA_FIELDS if key not in unverified]
        problems += without_source(data, doubtless, sources, " and is not listed in `unverified`")
    if problems:
        raise TargetFileError(f"Target file {where} is malformed:", problems)
    return Target(**{key: data[key] for key in _TYPES}, unverified=unverified, sources=sources)


def _value_problems(key: str, kind: type, data: Mapping[str, Any]) -> list[str]:
    if kind is int:
        return _number_problems(key, data)
    if key == "name":
        return name_problems(data)
    if key == "vendor":
        return choice_problems(key, data, _VENDORS)
    if key == "compute_capability":
        return text_problems(key, data, pattern=_CAPABILITY, like='look like "9.0"')
    return text_problems(key, data)


def _number_problems(key: str, data: Mapping[str, Any]) -> list[str]:
    if key not in data:
        return [f"`{key}`: missing"]
    value = data[key]
    if type(value) is not int or value <= 0:  # bool is an int, and 0 no device's answer
        return [f"`{key}`: must be a positive integer, not {value!r}"]
    return []


def _unverified(value: Any) -> tuple[tuple[str, ...], list[str]]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return (), [f"`unverified`: must be a list of field names, not {value!r}"]
    foreign = [item for item in value if item not in DATA_FIELDS]
    twice = sorted({item for item in value if value.count(item) > 1})
    problems = [f"`unverified`: `{item}` is no field that can be unverified" for item in foreign]
    problems += [f"`unverified`: `{item}` is listed twice" for item in twice]
    return tuple(value), problems
