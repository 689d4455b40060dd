"""The record of what the engine did with its cache: every look-up, one line each, in a small file of the cache root."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields

from model_cache.engine.nearest import Difference
from model_cache.store import files
from model_cache.store.root import Root, temporary_name

CACHE = "torch_compile_cache/torch_aot_compile"
"""Where the artifacts lie under the cache root (vllm 0.31.0 to 0.33.0)."""

PIECEWISE = "torch_compile_cache"
"""Where the directories of the piecewise path lie, and beside them those of artifacts (vllm 0.33.0,
`VllmBackend.__call__`)."""

_PIECEWISE_DIGITS = 10
"""Of a SHA-256, those that a key of the piecewise path has."""

LOOKUPS = "lookups.jsonl"
"""The record, below the root's `.model-cache`."""

MAX_BYTES = 1024 * 1024
"""The record is begun anew when it has become longer."""


@dataclass(frozen=True)
class LookUp:
    """One look-up of the engine.

    Attributes:
        time: seconds since the epoch.
        pid: of the engine's process.
        prefix, rank: which compiled model, for which rank (``0_0``).
        key: the engine's key.
        hit: whether something was loaded.
        parts: compiled parts in it; 0 means that the model runs uncompiled.
        seconds: the look-up took.
        wheel: distribution that had put it there, or "".
        mended: a fault of the engine was mended for it (`mends`).
        adopted: it had been built under another name of the model.
        nearest: of a miss, the wheel that comes nearest, or "".
        differences: what differs from that one.
        reason: why it was adopted, or why nothing was; or "".
        unsafe: of a hit, what rule speaks against it (`misfit`), or "".
    """

    time: float
    pid: int
    prefix: str
    rank: str
    key: str
    hit: bool
    parts: int
    seconds: float
    wheel: str
    mended: bool = False
    adopted: bool = False
    nearest: str = ""
    reason: str = ""
    unsafe: str = ""
    differences: tuple[Difference, ...] = ()


def directory(key: str) -> str:
    """Where the entry of a key lies below the cache root."""
    return f"{PIECEWISE if len(key) == _PIECEWISE_DIGITS else CACHE}/{key}"


def read(root: Root) -> list[LookUp]:
    """Every look-up on record, the oldest first; lines that are none are left out."""
    try:
        with root.state_directory() as directory, os.fdopen(files.open_regular(directory, LOOKUPS), "rb") as file:
            lines = file.read(2 * MAX_BYTES).splitlines()
    except OSError:
        return []
    return list(_parsed(lines))


def _parsed(lines: Sequence[bytes]) -> Iterator[LookUp]:
    kinds = {field.name: str(field.type) for field in fields(LookUp) if field.name != "differences"}
    for line in lines:
        with suppress(ValueError, TypeError, RecursionError):
            value = dict(json.loads(line))
            value["differences"] = tuple(_difference(one) for one in value.get("differences", ()))
            found = LookUp(**value)
            right = all(type(getattr(found, name)).__name__ == kind for name, kind in kinds.items())
            if right and math.isfinite(found.time) and math.isfinite(found.seconds):
                yield found


def _difference(value: object) -> Difference:
    """Raises TypeError for another form."""
    if not isinstance(value, dict) or value.keys() != {"factor", "wheel", "here"}:
        raise TypeError
    factor, wheel, here = value["factor"], value["wheel"], value["here"]
    if not (isinstance(factor, str) and isinstance(wheel, str | None) and isinstance(here, str | None)):
        raise TypeError
    return Difference(factor, wheel, here)


def append(root: Root, found: LookUp) -> None:
    """Add one line; a line is written at once, so that lines of several processes do not mix. Raises OSError."""
    line = json.dumps(asdict(found)).encode() + b"\n"
    with root.state_directory(create=True) as directory:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(LOOKUPS, flags, files.FILE_MODE, dir_fd=directory)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, f"{LOOKUPS} is no regular file")
            full = status.st_size + len(line) > MAX_BYTES
            if not full:
                os.write(descriptor, line)
        finally:
            os.close(descriptor)
        if full:
            files.write_atomically(directory, LOOKUPS, line, temporary_name())
