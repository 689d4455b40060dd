"""Reads every byte of an artifact directory: is it what the description says, and may it be shipped?"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Container, Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path

from hatch_model_cache.packing.artifacts import EVIDENCE, FILE_NAME, FILES, LOGS, Artifacts
from hatch_model_cache.packing.leaks import Watch
from model_cache.wheel.manifest import File

LEFTOVERS = (".tmp", ".lock", ".part", ".partial", ".swp")
"""Endings of files that a writer had not finished with."""

NEVER_PACKED = frozenset(("cache_key_factors.json",))
"""vLLM's dump of the values in its key: it holds whatever the environment held."""

NINJA = frozenset(("build.ninja", ".ninja_log", ".ninja_deps"))
"""A tree that ninja builds in: it judges by file times, which no wheel keeps, and mixes old and new objects."""

TRITON_GROUP = "__grp__"
"""How Triton's files begin that hold absolute paths; a deploy writes them for its place (`store.groups`)."""

_TEXT = frozenset(("json", "ptx", "source"))
_TEXT_SUFFIXES = frozenset((".json", ".py", ".txt", ".ptx", ".cpp", ".cu", ".yaml", ".ll", ".ttir", ".ttgir"))


def file_problems(artifacts: Artifacts, watch: Watch) -> list[str]:
    """Problems of the files below the artifact directory, one line each."""
    listed: dict[str, list[File]] = {}
    for _, file, source in artifacts.files():
        listed.setdefault(source, []).append(file)
    problems = []
    seen = set()
    texts = artifacts.texts()
    for name, mode in _tree(artifacts.directory):
        seen.add(name)
        problem = _name_problem(name, mode, {*listed, *texts})
        if problem:
            problems.append(f"{name}: {problem}")
    problems += [f"{name}: is missing" for name in sorted({*listed, *texts} - seen)]
    for entry, file, _ in artifacts.files():
        if Path(file.path).name in NEVER_PACKED:
            problems.append(f"{entry.directory}/{file.path}: dumps environment values and is never packed")
        if Path(file.path).name in NINJA:
            problems.append(f"{entry.directory}/{file.path}: ninja judges by file times, so its trees are never packed")
        if Path(file.path).name.startswith(TRITON_GROUP):
            problems.append(f"{entry.directory}/{file.path}: holds absolute paths of the machine that it was made on")
        if file.path.lower().endswith(LEFTOVERS):
            problems.append(f"{entry.directory}/{file.path}: is the leftover of an unfinished write")
    for name in sorted(listed.keys() & seen):
        problems += _content_problems(artifacts.path(name), name, listed[name], watch)
    for name in sorted(texts.keys() & seen):
        problems += _text_problems(artifacts.path(name), name, texts[name], watch)
    return problems


def _tree(root: Path) -> Iterator[tuple[str, int]]:
    """(path relative to `root`, st_mode) of all below it but directories and logs; links are not followed."""
    for parent, directories, files in os.walk(root):
        relative = Path(parent).relative_to(root)
        if relative == Path():
            directories[:] = [name for name in directories if name != LOGS]
        directories.sort()
        links = [name for name in directories if (Path(parent) / name).is_symlink()]
        for name in sorted([*files, *links]):
            yield (relative / name).as_posix(), (Path(parent) / name).lstat().st_mode


def _name_problem(name: str, mode: int, listed: Container[str]) -> str | None:
    if name == FILE_NAME:
        return None
    if stat.S_ISLNK(mode):
        return "is a link; put a copy of the file in its place"
    if not stat.S_ISREG(mode):
        return "is no regular file"
    if name.lower().endswith(LEFTOVERS):
        return "is the leftover of an unfinished write"
    if name in listed:
        return None
    if not name.startswith(f"{FILES}/"):
        return f"does not belong here: an artifact directory holds {FILE_NAME}, {FILES}/, {EVIDENCE}/ and {LOGS}/"
    return f"is not listed in {FILE_NAME}"


def _text_problems(path: Path, name: str, digest: str, watch: Watch) -> list[str]:
    """Problems of a text that kernels were made from."""
    if not stat.S_ISREG(path.lstat().st_mode):
        return []  # told already
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    problems = [] if found == digest else [f"{name}: has the sha256 {found}"]
    return [*problems, *(f"{name}: holds {leak}" for leak in watch.leaks(content, text=True))]


def _content_problems(path: Path, name: str, described: list[File], watch: Watch) -> list[str]:
    """Problems of the bytes at `path`, which several entries may have described, each for itself."""
    if not stat.S_ISREG(path.lstat().st_mode):
        return []  # told already
    size = path.stat().st_size
    problems = [
        f"{name}: has {size} bytes, {FILE_NAME} says {expected}"
        for expected in sorted({file.size for file in described})
        if expected != size
    ]
    if not size:
        return problems
    text = any(Path(file.path).suffix.lower() in _TEXT_SUFFIXES or _TEXT & set(file.contains) for file in described)
    with path.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
        digest = hashlib.sha256(content).hexdigest()
        leaks = list(watch.leaks(content, text=text))
    problems += [
        f"{name}: has the sha256 {digest}, {FILE_NAME} says {expected}"
        for expected in sorted({file.sha256 for file in described})
        if expected != digest
    ]
    return problems + [f"{name} ({described[0].path}): holds {leak}" for leak in leaks]
