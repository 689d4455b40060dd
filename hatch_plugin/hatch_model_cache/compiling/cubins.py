"""The kernels in an artifact that no pretended GPU has noted, as far as their cubins speak for themselves."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from hatch_model_cache import cubin


def kernels(path: Path) -> list[dict[str, Any]]:
    """Describe every kernel in the file at `path`, as the result of a compile process does. Nothing is unpickled.

    Shared memory is None: it is asked for at the launch, and no cubin holds it. A file that is not there has none.
    """
    data = path.read_bytes() if path.is_file() else b""
    found = {hashlib.sha256(one).hexdigest(): one for one in cubin.embedded(data)}
    return [_kernel(digest, one) for digest, one in sorted(found.items())]


def _kernel(digest: str, data: bytes) -> dict[str, Any]:
    name = cubin.kernel_name(data)
    registers, spills = cubin.resources(data, name)
    return {
        "name": name,
        "sha256": digest,
        "arch": cubin.architecture(data),
        "registers": registers,
        "spills": spills,
        "shared": None,
        "lineage": None,
    }
