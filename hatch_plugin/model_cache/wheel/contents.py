"""The pickles of a wheel: for `inspect --pickles`, and as a condition where signatures are required."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from model_cache.wheel.allowed_globals import Rules, rules
from model_cache.wheel.manifest import File, Manifest
from model_cache.wheel.names import counted
from model_cache.wheel.payload import Payload
from model_cache.wheel.pickles import MAX_BYTES, Report


class Looked(NamedTuple):
    """One distinct file that an engine would unpickle. path: below the cache root; problems: why it may not."""

    path: str
    file: File
    report: Report
    problems: tuple[str, ...]


def look(payload: Payload, manifest: Manifest, check: Callable[[], None] | None = None) -> Iterator[Looked]:
    """Look into every file that has to be looked at, each content once. check: called now and then, may raise."""
    allowed = rules(manifest.engine.name)
    present = payload.files()
    seen: set[str] = set()
    for entry in manifest.entries:
        for file in entry.files:
            if file.sha256 not in seen and (not payload.partial or _path(file) in present):
                seen.add(file.sha256)
                if found := _look(payload, allowed, entry.component, file, check):
                    yield Looked(f"{entry.directory}/{file.path}", file, *found)


def _path(file: File) -> str:
    return f"blobs/{file.sha256[:2]}/{file.sha256}"


def _look(
    payload: Payload, allowed: Rules, component: str, file: File, check: Callable[[], None] | None
) -> tuple[Report, tuple[str, ...]] | None:
    path = _path(file)
    with payload.open(path) as source:
        if not allowed.applies(component, file, source.read(1)):
            return None
    if file.size > MAX_BYTES:
        found = Report(problems=[f"is larger than {MAX_BYTES} bytes"])
    else:
        data = payload.read(path, file.size)
        if hashlib.sha256(data).hexdigest() != file.sha256:
            found = Report(problems=["has other content than the manifest says"])
        else:
            found = allowed.report(component, data, check)
    return found, tuple(allowed.problems(found))


def describe(looked: Looked, engine: str) -> Iterator[str]:
    """The lines that say what a file's pickles would import; what is not expected comes first, marked with "!"."""
    allowed, found = rules(engine), looked.report
    yield f"  {looked.path}: {counted(found.pickles, 'pickle')}, {counted(len(found.globals), 'name')}"
    yield from (f"  ! {problem}" for problem in looked.problems)
    yield from (f"    {name} ({count})" for name, count in sorted(found.globals.items()) if name in allowed.names)
    for what, counts in (("attribute", found.attributes), ("call", found.calls)):
        yield from (f"    {what} {text} ({count})" for text, count in sorted(counts.items()))


def verdict(looked: Sequence[Looked], engine: str) -> str:
    """One line over all files: how many distinct names, how many the engine does not need, and what else is wrong."""
    allowed = rules(engine)
    names = {name for one in looked for name in one.report.globals}
    outside = len(names - allowed.names)
    listed = sum(name not in allowed.names for one in looked for name in one.report.globals)
    others = sum(len(one.problems) for one in looked) - listed
    more = f", {counted(others, 'other problem')}" if others else ""
    return f"  {counted(len(names), 'name')}, {outside} outside the list{more}"


def as_dict(looked: Looked) -> dict[str, object]:
    """For `--json`."""
    found = looked.report
    return {
        "path": looked.path,
        "sha256": looked.file.sha256,
        "pickles": found.pickles,
        "globals": {str(name): count for name, count in sorted(found.globals.items())},
        "attributes": dict(sorted(found.attributes.items())),
        "calls": dict(sorted(found.calls.items())),
        "unpickles": found.loads,
        "problems": list(looked.problems),
    }
