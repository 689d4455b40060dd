"""What must hold between the fields of a manifest that are fine each for itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from model_cache.errors import DamagedError
from model_cache.wheel.names import PREFIX, folded, normalize, unsafe_path
from model_cache.wheel.strict_json import MAX_PROBLEMS, loads

if TYPE_CHECKING:
    from model_cache.wheel.manifest import Manifest

MAX_HINTS = 64
MAX_HINT_BYTES = 64 * 1024
_HINT = re.compile(r"[A-Za-z0-9_-]+/[A-Za-z0-9_-][A-Za-z0-9._-]*\.json")


def inconsistencies(manifest: Manifest) -> list[str]:
    """Every problem between the fields of `manifest`, one line each; empty when there is none."""
    problems: list[str] = []
    if not normalize(manifest.name).startswith(PREFIX):
        problems.append(f"name does not start with {PREFIX!r}")
    problems += _twice("targets", (target.name for target in manifest.targets))
    problems += collisions("entries", [entry.directory for entry in manifest.entries])
    targets = {target.name for target in manifest.targets}
    sizes: dict[str, int] = {}
    for i, entry in enumerate(manifest.entries):
        if entry.target not in targets:
            problems.append(f"entries[{i}].target {entry.target!r} is not one of the targets")
        if entry.served_as not in manifest.model.served_as:
            problems.append(f"entries[{i}].served_as {entry.served_as!r:.80} is not one of model.served_as")
        if entry.factors not in manifest.factors:
            problems.append(f"entries[{i}].factors {entry.factors!r:.80} is not in factors")
        problems += collisions(f"entries[{i}].files", [file.path for file in entry.files])
        for file in entry.files:
            if sizes.setdefault(file.sha256, file.size) != file.size:
                problems.append(f"entries[{i}]: {file.path!r:.80} gives another size for the same sha256")
    problems += [
        f"kernels[{i}].target {kernel.target!r} is not one of the targets"
        for i, kernel in enumerate(manifest.kernels)
        if kernel.target not in targets
    ]
    problems += [
        f"regions[{i}].target {region.target!r} is not one of the targets"
        for i, region in enumerate(manifest.regions)
        if region.target not in targets
    ]
    problems += _without_code(manifest)
    problems += _bad_hints(manifest)
    return problems[:MAX_PROBLEMS]


def _without_code(manifest: Manifest) -> Iterator[str]:
    """Targets for which the wheel holds nothing compiled: an engine would load it and compile all the same."""
    with_kernels = {kernel.target for kernel in manifest.kernels}
    shared = {entry.target for entry in manifest.entries for f in entry.files if "shared-object" in f.contains}
    for i, target in enumerate(manifest.targets):
        if target.kind == "cpu" and target.name in with_kernels:
            yield f"targets[{i}] {target.name!r} is a CPU, and kernels are a GPU's"
        elif target.kind == "cpu" and target.name not in shared:
            yield f"targets[{i}] {target.name!r} is a CPU, and no entry for it holds a shared object"
        elif target.kind == "gpu" and target.name not in with_kernels:
            yield f"targets[{i}] {target.name!r} is a GPU, and there is no kernel for it"
    if any(target.kind == "gpu" for target in manifest.targets):
        for field in ("cuda", "triton"):
            if getattr(manifest.engine, field) is None:
                yield f"engine.{field} is null, and GPU targets need it"


def _bad_hints(manifest: Manifest) -> Iterator[str]:
    """What may not be written beside the entries: anything but a short JSON object, in a directory of its own kind."""
    entries = {folded(entry.directory.partition("/")[0]) for entry in manifest.entries}
    if len(manifest.hints) > MAX_HINTS:
        yield f"hints holds more than {MAX_HINTS} files"
        return
    for path, text in manifest.hints.items():
        where = f"hints.{path!r:.80}"
        reason = unsafe_path(path)
        if reason or not _HINT.fullmatch(path):
            yield f"{where} {reason or 'is no JSON file in a directory below the root'}"
        elif folded(path.partition("/")[0]) in entries:
            yield f"{where} lies in a directory of entries"
        try:
            value = loads(text.encode(), where, MAX_HINT_BYTES)
        except DamagedError as error:
            yield error.message
        else:
            if not isinstance(value, dict):
                yield f"{where} must hold an object"
    yield from collisions("hints", list(manifest.hints))


def _twice(where: str, names: Iterable[str]) -> list[str]:
    return [f"{where} holds {name!r} twice" for name, count in Counter(names).items() if count > 1]


def collisions(where: str, paths: list[str]) -> list[str]:
    """Paths that are one on some file system, and paths that lie inside another one."""
    seen = {folded(path): path for path in reversed(paths)}
    problems = []
    if len(seen) != len(paths):
        counts = Counter(map(folded, paths))
        problems = [f"{where} holds {seen[name]!r} twice (letter case aside)" for name, n in counts.items() if n > 1]
    for name in sorted(seen):
        parts = name.split("/")
        for length in range(1, len(parts)):
            if (outer := "/".join(parts[:length])) in seen:
                problems.append(f"{where}: {seen[name]!r} lies inside {seen[outer]!r}")
    return problems
