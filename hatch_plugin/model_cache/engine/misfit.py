"""What the engine has loaded and should not have: what its key does not hold, compared with the wheel that it is from.

The rules are those by which `model-cache check` says unsafe. They can be asked only when the engine has made its model,
which is when it loads, so this tells and does not prevent. Not compared are what the wheel was deployed for (GPU, CPU,
versions), which is the deploy's part, and what no rule names.
"""

from __future__ import annotations

import functools
from typing import Any

from model_cache.engine import bounded, nearest
from model_cache.store.state import State
from model_cache.wheel.discovery import find
from model_cache.wheel.manifest import Manifest
from model_cache.wheel.payload import InstalledPayload
from model_cache.wheel.verify import read_manifest

SECONDS = 5.0
"""For the disk."""


def objection(model: Any, deployed: State) -> str:
    """Why what `model` has loaded of a deployed wheel does not belong here; "" when no rule speaks against it.

    model: the live module. Also "" when the wheel is not installed any more, since its manifest alone knows. Raises
    what goes wrong.
    """
    manifest = bounded.call(lambda: _manifest(deployed.name, deployed.manifest_sha256), SECONDS)
    return nearest.objection(model, manifest) if manifest else ""


@functools.cache
def _manifest(name: str, manifest_sha256: str) -> Manifest | None:
    """The installed wheel's, if it is the one that was deployed; read once, though every model of an engine asks."""
    for wheel in find(name):
        with InstalledPayload(wheel) as payload:
            found = read_manifest(payload)
            if found.manifest_sha256 == manifest_sha256:
                return found.manifest
    return None
