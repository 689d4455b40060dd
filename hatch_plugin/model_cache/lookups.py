"""What the engine did with its cache: every look-up, as it happens, one line each in a small file of the cache root.

vLLM looks for an artifact in one function, ``vllm.compilation.decorators._try_load_aot_compiled_fn(model, path)`` (vllm
0.33.0), which is wrapped when the engine has imported that module (`on_import`). The wrapper returns what the engine's
function returns and raises what it raises.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from model_cache import files, state
from model_cache.errors import ModelCacheError
from model_cache.root import Root, temporary_name

FUNCTION = "_try_load_aot_compiled_fn"
CACHE = "torch_compile_cache/torch_aot_compile"
"""Where the artifacts lie under the cache root (vllm 0.33.0)."""

LOOKUPS = "lookups.jsonl"
"""The record, below the root's `.model-cache`."""

MAX_BYTES = 1024 * 1024
"""The record is begun anew when it has become longer."""


class Say(Protocol):
    """Writes one line to the engine's log."""

    def __call__(self, message: str, *, alarm: bool = False) -> None: ...


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


def read(root: Root) -> list[LookUp]:
    """Every look-up on record, the oldest first; lines that are none are left out."""
    try:
        with root.state_directory() as directory, os.fdopen(files.open_regular(directory, LOOKUPS), "rb") as file:
            lines = file.read(2 * MAX_BYTES).splitlines()
    except OSError:
        return []
    return list(_parsed(lines))


def _parsed(lines: Sequence[bytes]) -> Iterator[LookUp]:
    kinds = {field.name: field.type for field in fields(LookUp)}
    for line in lines:
        with suppress(ValueError, TypeError, RecursionError):
            value = json.loads(line)
            found = LookUp(**value)
            right = all(type(value[name]).__name__ == kind for name, kind in kinds.items())
            if right and math.isfinite(found.time) and math.isfinite(found.seconds):
                yield found


def wrap(module: ModuleType, root_path: str, say: Say) -> None:
    """Record every look-up that `module` (`on_import.MODULE`) will make, in the cache root at `root_path`."""
    original: Callable[..., Any] | None = getattr(module, FUNCTION, None)
    if original is None or getattr(original, "__code__", None) is None or original.__code__.co_argcount != 2:
        say(f"this engine has no {FUNCTION}(model, path): look-ups are not recorded")
        return
    if getattr(original, "_recorded", False):
        return

    def recorded(model: Any, path: Any) -> Any:
        begun, parts = time.monotonic(), _parts()
        loaded = None
        try:
            loaded = original(model, path)
            return loaded
        finally:
            # whatever goes wrong here, the engine gets what its own function gave
            with suppress(Exception):
                seconds = time.monotonic() - begun
                _noted(root_path, model, str(path), loaded is not None, _parts() - parts, seconds, say)

    recorded._recorded = True  # type: ignore[attr-defined]
    setattr(module, FUNCTION, recorded)


def _parts() -> int:
    """Compiled parts loaded so far, by the engine's own counter (vllm 0.33.0, vllm/compilation/counter.py)."""
    module = sys.modules.get("vllm.compilation.counter")
    return int(getattr(getattr(module, "compilation_counter", None), "num_compiled_artifacts_loaded", 0))


def _noted(root_path: str, model: Any, path: str, hit: bool, parts: int, seconds: float, say: Say) -> None:
    try:
        _note(root_path, model, path, hit, parts, seconds, say)
    except Exception as error:
        say(f"a look-up could not be recorded: {type(error).__name__}: {error}", alarm=True)


def _note(root_path: str, model: Any, path: str, hit: bool, parts: int, seconds: float, say: Say) -> None:
    *_, key, rank, _ = Path(path).parts
    prefix = str(getattr(model, "_compile_tag", "") or "model")
    with Root.open(root_path, create=True) as root:
        wheel, target = _origin(root, key)
        found = LookUp(
            time=round(time.time(), 3),
            pid=os.getpid(),
            prefix=prefix,
            rank=rank.removeprefix("rank_"),
            key=key,
            hit=hit,
            parts=parts,
            seconds=round(seconds, 3),
            wheel=wheel,
        )
        _tell(found, target, say)
        _append(root, json.dumps(asdict(found)).encode() + b"\n")


def _tell(found: LookUp, target: str, say: Say) -> None:
    what = f"{found.prefix} rank {found.rank}"
    if found.hit and not found.parts:
        say(f"hit {what}, but it holds no compiled part: the model runs uncompiled", alarm=True)
    elif found.hit:
        say(f"hit {what} in {found.seconds:.1f} s ({f'built for {target}' if target else 'not from a wheel'})")
    else:
        say(f"miss {what}: no wheel has key {found.key[:12]}…; `model-cache check` says why", alarm=True)


def _origin(root: Root, key: str) -> tuple[str, str]:
    """The deployed wheel that has an entry of this key, and the targets it was deployed for."""
    for name in state.names(root):
        with suppress(ModelCacheError):
            deployed = state.load(root, name)
            entry = deployed.entry(f"{CACHE}/{key}") if deployed else None
            if deployed and entry and entry.ours:
                return deployed.name, ", ".join(deployed.targets)
    return "", ""


def _append(root: Root, line: bytes) -> None:
    """Add one line; a line is written at once, so that lines of several processes do not mix."""
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
