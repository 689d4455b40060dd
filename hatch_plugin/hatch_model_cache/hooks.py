"""What hatchling finds under the entry point `model-cache`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatchling.plugin import hookimpl

if TYPE_CHECKING:
    from .build_hook import ModelCacheBuildHook


@hookimpl
def hatch_register_build_hook() -> type[ModelCacheBuildHook]:
    """Register the build hook `model-cache`."""
    from .build_hook import ModelCacheBuildHook

    return ModelCacheBuildHook
