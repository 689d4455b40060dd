"""What happens when the engine looks for an artifact that is not there: the nearest wheel is found, perhaps adopted.

The same model under another path, and a fine-tune of it, have other keys and the same code. When only the name of the
weights differs (`nearest`), the wheel's files are deployed under the engine's key, like any other entry of the wheel.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from model_cache.engine import bounded, nearest
from model_cache.engine.nearest import Nearest
from model_cache.errors import ModelCacheError
from model_cache.machine.host import ASSUME_TARGET, read_host
from model_cache.store import plan
from model_cache.store.deploy import deploy
from model_cache.wheel.discovery import scan
from model_cache.wheel.lookup import installed
from model_cache.wheel.manifest import Manifest
from model_cache.wheel.payload import InstalledPayload
from model_cache.wheel.verify import Deadline, read_manifest

ADOPT = "MODEL_CACHE_ADOPT"
"""Adoption is on unless this variable is 0."""

SECONDS = 30.0
"""A compile takes longer."""


def meet(model: Any, path: str, root_path: str) -> Nearest:
    """The wheel that comes nearest to what the engine looks for at `path`; if it is `adoptable`, it was adopted.

    model: the live module; root_path: the cache root. Takes at most `SECONDS` for the disk, twice; the engine is asked
    in this thread. Raises what goes wrong.
    """
    manifests = bounded.call(lambda: [*_manifests()], SECONDS)
    found = nearest.find(model, path, manifests)
    if not found.adoptable:
        return found
    if os.environ.get(ADOPT, "") == "0":
        return replace(found, adoptable=(), reason=f"not adopted: {ADOPT}=0")
    engine = next(manifest.engine.name for manifest in manifests if manifest.name == found.wheel)
    try:
        obstacle = bounded.call(lambda: _adopt(found, engine, root_path), SECONDS)
    except (ModelCacheError, OSError) as error:
        obstacle = "; ".join([str(error), *getattr(error, "problems", ())])
    if obstacle:
        return replace(found, adoptable=(), reason=f"not adopted: {obstacle}")
    return found


def _manifests() -> Iterator[Manifest]:
    """Of the installed wheels that this host accepts."""
    for wheel in scan().wheels:
        with suppress(ModelCacheError), InstalledPayload(installed(wheel.name)) as payload:
            yield read_manifest(payload).manifest


def _adopt(found: Nearest, engine: str, root_path: str) -> str:
    """Deploy what may be adopted; why it is not there, "" if it is. Raises ModelCacheError, OSError."""
    deadline = Deadline(SECONDS)
    host = read_host(engine, os.environ.get(ASSUME_TARGET) or None, deadline.remaining())
    with InstalledPayload(installed(found.wheel)) as payload:
        outcome = deploy(payload, root_path, host, hold=True, adopted=found.adoptable, deadline=deadline)
    directory = found.adoptable[0].directory
    entry = next((entry for entry in outcome.entries if entry.directory == directory), None)
    if entry is None:
        return f"{found.wheel} holds it for another GPU"
    return entry.note if entry.action == "kept" and entry.note != plan.SAME else ""
