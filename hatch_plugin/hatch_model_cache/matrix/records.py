"""What was built, and from what: which wheels are up to date, and why the others are not."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import hatch_model_cache
import model_cache
from model_cache.errors import ModelCacheError
from model_cache.wheel.names import data_package

from .cells import Cell

_MAX_BYTES = 1 << 20
_WORDS = {
    "project": "the recipe, its configuration or its project changed",
    "engine": "another engine",
    "tool": "another version of hatch-model-cache",
    "source": "another source of hatch-model-cache",
}


@dataclass(frozen=True)
class Key:
    """All that decides a wheel's content and is known before it is built."""

    project: str
    """SHA-256 over the files of the recipe project, so over recipe, configuration, name and version."""
    engine: str
    tool: str
    source: str
    """SHA-256 over this package's own source, so that a build from a checkout is not taken for another's."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all of it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class State:
    """Whether a cell's wheel is up to date."""

    stale: bool
    reason: str
    """In words: why it is to be built, or `up to date`."""
    wheel: Path | None = None
    """The wheel that is there, if it is up to date."""


@dataclass(frozen=True)
class Record:
    """One finished wheel."""

    key: Key
    wheel: str
    """File name."""
    content: str
    """See `content_of`."""
    seconds: float


def key_of(cell: Cell, files: Mapping[str, bytes]) -> Key:
    """The key of a cell whose project has these files."""
    listed = [(name, hashlib.sha256(data).hexdigest()) for name, data in sorted(files.items())]
    project = hashlib.sha256(json.dumps([cell.identifier, listed]).encode()).hexdigest()
    return Key(project, cell.recipe.engine, model_cache.__version__, _own_source())


@functools.cache
def _own_source() -> str:
    digest = hashlib.sha256()
    for package in (model_cache, hatch_model_cache):
        directory = Path(str(package.__file__)).parent
        for path in sorted(directory.rglob("*")):
            if path.suffix in (".py", ".toml", ".json") and path.is_file():
                digest.update(f"{path.relative_to(directory.parent)}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def state(cell: Cell, key: Key, work: Path, out: Path) -> State:
    """Whether `out` has the cell's wheel, built from this key, byte for byte; it may have been signed since."""
    record = _read(_place(cell, work))
    if record is None:
        return State(True, "not built yet")
    changed = [word for name, word in _WORDS.items() if getattr(record.key, name) != getattr(key, name)]
    if changed:
        return State(True, ", ".join(changed))
    wheel = out / record.wheel
    if not wheel.is_file():
        return State(True, f"{wheel.name} is not there any more")
    try:
        same = content_of(wheel) == record.content
    except ModelCacheError:
        same = False
    return State(False, "up to date", wheel) if same else State(True, f"{wheel.name} is not as it was built")


def content_of(wheel: Path) -> str:
    """SHA-256 (hex) over what a signature of the wheel covers, which is every byte of its members but signatures: a
    wheel that was signed is the same wheel. Raises DamagedError, ModelCacheError."""
    from hatch_model_cache.packing.signing import Signable

    held = Signable.read(wheel)
    listed = [hashlib.sha256(held.manifest).hexdigest(), sorted(held.dist_info.items())]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def write(cell: Cell, record: Record, work: Path) -> None:
    """Record a finished wheel, whole or not at all."""
    place = _place(cell, work)
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(record), indent=1) + "\n", "utf-8")
    os.replace(temporary, place)  # noqa: PTH105


def forget(cell: Cell, work: Path) -> None:
    """Take a record away: its wheel is about to be replaced."""
    _place(cell, work).unlink(missing_ok=True)


def is_wheel_of(cell: Cell, file_name: str) -> bool:
    """Whether a file is named as the cell's wheel is."""
    return file_name.endswith(".whl") and file_name.startswith(f"{data_package(cell.name)}-{cell.version}-")


def _place(cell: Cell, work: Path) -> Path:
    return work / "records" / f"{data_package(cell.name)}-{cell.version}.json"


def _read(path: Path) -> Record | None:
    """The record in a file; None when it is none: then the wheel is built anew."""
    from model_cache.wheel import small_file

    try:
        found = json.loads(small_file.read(path, _MAX_BYTES))
        record = Record(Key(**found.pop("key")), **found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return record if Path(str(record.wheel)).name == record.wheel else None
