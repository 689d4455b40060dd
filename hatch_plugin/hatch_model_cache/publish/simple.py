"""The pages that installers read: the simple repository API as files (PEP 503 and 691, with 592, 658, 700 and 714)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from packaging.version import Version

from model_cache.wheel.catalogue import Catalogue, Labels, Package

from .pages import render

__all__ = ["FOLDER", "pages", "projects"]

FOLDER = "simple"
"""Directory of an index that `--index-url` names."""

API_VERSION = "1.1"
"""Of PEP 691: the first with sizes, versions and upload times."""


def projects(catalogue: Catalogue) -> dict[str, list[Package]]:
    """Project → its wheels, oldest version first."""
    packages = sorted(catalogue.packages(), key=lambda one: (one.name, Version(one.version), one.file))
    return {name: list(group) for name, group in groupby(packages, key=lambda one: one.name)}


def pages(catalogue: Catalogue) -> Iterator[tuple[str, bytes]]:
    """(path in the site, bytes) of every page."""
    found = projects(catalogue)
    yield f"{FOLDER}/index.html", render("projects.html", projects=list(found))
    yield f"{FOLDER}/index.json", _json({"projects": [{"name": name} for name in found]})
    for name, packages in found.items():
        labels = [one for one in catalogue.labels if one.name == name]
        yield f"{FOLDER}/{name}/index.html", render("project.html", name=name, packages=packages, labels=labels)
        yield f"{FOLDER}/{name}/index.json", _json(_project(name, packages, labels))


def _project(name: str, packages: Sequence[Package], labels: Sequence[Labels]) -> dict[str, Any]:
    return {
        "name": name,
        "versions": list(dict.fromkeys(package.version for package in packages)),
        "files": [*map(_package, packages), *map(_file, labels)],
    }


def _file(one: Package | Labels) -> dict[str, Any]:
    return {
        "filename": one.file,
        "url": f"../../{one.url}",
        "hashes": {"sha256": one.sha256},
        "size": one.size,
    }


def _package(package: Package) -> dict[str, Any]:
    metadata = {"sha256": package.metadata.sha256}
    said: dict[str, Any] = {
        **_file(package),
        "core-metadata": metadata,
        "dist-info-metadata": metadata,  # its name before PEP 714, which older installers read
    }
    if package.requires_python:
        said["requires-python"] = package.requires_python
    if package.uploaded:
        said["upload-time"] = package.uploaded
    if package.yanked is not None:
        said["yanked"] = package.yanked or True
    return said


def _json(document: Mapping[str, Any]) -> bytes:
    whole = {"meta": {"api-version": API_VERSION}, **document}
    return json.dumps(whole, indent=1, ensure_ascii=False).encode() + b"\n"
