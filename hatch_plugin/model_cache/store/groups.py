"""The small files by which Triton finds a kernel that it has compiled before: they name the kernel's other files by
absolute paths, so none can be in a wheel.

triton 3.8.0, triton/runtime/cache.py, ``FileCacheManager.get_group``: of the group file ``__grp__<name>.json`` in a
kernel's directory every path must exist, or the kernel is compiled again. What such a file has to say follows from the
manifest's list of files and from where the cache root is, so it is written when they are deployed, as a hint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from model_cache.wheel.manifest import Entry

KIND = "triton-kernel"
"""Of a kernel's files in the manifest: the cubin, and the JSON file that describes it."""

PREFIX = "__grp__"


def texts(entries: Iterable[Entry], root_path: str) -> dict[str, str]:
    """The group file of every kernel of `entries` in a root: path relative to the root → text.

    root_path: where the root is, absolute.
    """
    found: dict[str, str] = {}
    for entry in entries:
        kernels: dict[str, list[str]] = {}
        for file in entry.files:
            if file.kind == KIND:
                folder, _, name = file.path.rpartition("/")
                kernels.setdefault(f"{entry.directory}/{folder}".rstrip("/"), []).append(name)
        for folder, names in kernels.items():
            group = {"child_paths": {name: f"{root_path}/{folder}/{name}" for name in sorted(names)}}
            found |= {f"{folder}/{PREFIX}{name}": json.dumps(group) for name in names if name.endswith(".json")}
    return found
