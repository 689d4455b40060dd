"""The files beside an AOT artifact of vLLM on CPU: kernels as shared objects, which Inductor looks for by name.

The artifact's own file holds the kernels' sources only. On load Inductor (torch 2.13.0, ``CppCodeCache.load_async``)
looks for each in ``<key>/inductor_cache``, and compiles what it does not find.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

DIRECTORY = "inductor_cache"
"""Beside the ranks' directories of one key (vllm/compilation/decorators.py, 0.32.0)."""

_KERNEL, _SOURCE, _SHARED = ".main", ".cpp", ".so"


def beside(model: Path) -> tuple[dict[str, object], ...]:
    """Describe what has to go along with an artifact's file: ``path`` in the key's directory, ``source`` (where it is),
    ``kind`` and ``contains`` as in the manifest.

    Left out: locks, which every process makes; generated Python and Inductor's own cache of graphs, which the
    artifact's file makes superfluous; Inductor's trials of instruction sets, whose names hold every word of ``g++ -v``
    and which the serving side's mends make superfluous; precompiled headers, which are elsewhere.

    Shared objects lose their debug sections here, which name paths of this machine; no instruction changes.

    Args:
        model: ``…/<key>/rank_r_dp/model``.
    """
    key = model.parent.parent
    found = kernels(key / DIRECTORY, key, (_SOURCE, _SHARED))
    return tuple(file for file in found if file["kind"] == "inductor-kernel")


def kernels(cache: Path, below: Path, suffixes: Collection[str] = (_SHARED,)) -> tuple[dict[str, object], ...]:
    """Describe the kernels in a directory that Inductor has filled, as `beside` does; shared objects are stripped.

    Args:
        cache: the directory.
        below: what ``path`` is relative to.
        suffixes: of the files that are wanted.
    """
    found = sorted(p for p in cache.glob("*/*") if p.suffix in suffixes)
    _strip([path for path in found if path.suffix == _SHARED])
    return tuple(_describe(path, path.relative_to(below).as_posix()) for path in found)


def _describe(path: Path, relative: str) -> dict[str, object]:
    # the others are Inductor's trials of the instruction sets that it knows
    kind = "inductor-kernel" if Path(path.stem).suffix == _KERNEL else "inductor-probe"
    contains = ["shared-object"] if path.suffix == _SHARED else ["source"]
    return {"path": relative, "source": str(path), "kind": kind, "contains": contains}


def _strip(objects: list[Path]) -> None:
    """Remove debug sections. Raises RuntimeError without the tool, which comes with every compiler (binutils)."""
    tool = shutil.which("strip")
    if tool is None:
        raise RuntimeError("no `strip` on the PATH: install binutils, which g++ needs too")
    if objects:
        subprocess.run([tool, "--strip-debug", *map(str, objects)], check=True)
