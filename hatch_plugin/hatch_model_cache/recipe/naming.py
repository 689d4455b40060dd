"""Model id and targets -> distribution name and data package name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from model_cache.wheel.names import PREFIX, data_package, normalize

__all__ = [
    "ENTRY_POINT_GROUP",
    "NamedTarget",
    "data_package",
    "distribution_name",
    "hardware_name",
    "same_project",
    "slug",
]

ENTRY_POINT_GROUP = "model_cache"
"""Group whose entry `<distribution> = <data package>` tells the serving side where the payload is."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class NamedTarget(Protocol):
    """What naming needs to know of a target."""

    @property
    def name(self) -> str: ...
    @property
    def architecture(self) -> str: ...


def slug(text: str) -> str:
    """`text` in lower case with every run of other characters than [a-z0-9.] as one "-", trimmed.

    Returns "" when nothing is left.
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


def model_slug(model: str, *, with_org: bool = False) -> str:
    """The model's part of a distribution name.

    model: a Hub id, a directory or a URL of an object storage. Without `with_org` the last part counts.
    """
    path = _SCHEME.sub("", model)
    return slug(path if with_org else path.rstrip("/").rpartition("/")[2])


def hardware_name(targets: Sequence[NamedTarget]) -> str | None:
    """The hardware's part of a distribution name; None when the recipe must say it.

    One target gives its name, several of one compute capability the architecture ("sm90").
    """
    if len(targets) == 1:
        return targets[0].name
    architectures = {target.architecture for target in targets}
    return architectures.pop() if len(architectures) == 1 else None


def distribution_name(model: str, hardware: str, *, variant: str | None = None, with_org: bool = False) -> str:
    """`model-cache-<model>[-<variant>]-<hardware>`, the only name a recipe's project may have."""
    parts = (model_slug(model, with_org=with_org), variant, hardware)
    return PREFIX + "-".join(part for part in parts if part)


def same_project(one: str, other: str) -> bool:
    """Whether two distribution names are one project to an index (PEP 503)."""
    return normalize(one) == normalize(other)
