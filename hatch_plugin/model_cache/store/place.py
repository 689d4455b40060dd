"""Is a place fit for code that an engine will load? Judged before the first write, by descriptor, link by link.

Whoever may rename or replace something on the way to a cache root decides what the engine loads. So every directory
on the way has to belong to root or to us and may be world-writable only with the sticky bit, and a link has to belong
to one of us too. Nothing is looked up twice: what was judged is what is used.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from model_cache.errors import ModelCacheError
from model_cache.store import files
from model_cache.wheel.names import printable

TRUST = "MODEL_CACHE_TRUST_PLACE"
"""Set to 1, it turns the judgement off, for volumes that look open and are not (a Kubernetes emptyDir is 0777)."""

MAX_LINKS = 40
_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

NETWORKS = {
    0x6969: "NFS",
    0x0BD00BD0: "Lustre",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB",
    0x517B: "SMB",
    0x00C36400: "CephFS",
    0x19830326: "BeeGFS",
    0x47504653: "GPFS",
    0x01021997: "9P",
    0x65735546: "FUSE",
}
"""f_type of statfs(2) → the file systems whose locks, names or writes may be late or missing on other hosts."""


class UnsafePlaceError(ModelCacheError):
    """Others than root and us could replace what lies there."""

    kind = "unsafe-place"


def open_judged(path: str, *, create: bool = False) -> int:
    """Open the directory at absolute `path` after judging every directory and link on the way; a descriptor.

    create: make what is missing, with our mode. Raises UnsafePlaceError, OSError.
    """
    here = os.open("/", _WAY)
    try:
        trusted = frozenset() if os.environ.get(TRUST, "") not in ("", "0") else _trusted(here)
        shown = ""
        todo = _parts(path)
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                here, shown = _moved(here, os.open("..", _WAY, dir_fd=here)), os.path.dirname(shown)  # noqa: PTH120
                continue
            status = _look(here, part, create=create)
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                _judge_owner(f"{shown}/{part}", status, trusted, "the link ")
                target = os.readlink(part, dir_fd=here)
                todo += _parts(target)
                if target.startswith("/"):
                    here, shown = _moved(here, os.open("/", _WAY)), ""
                continue
            # O_NOFOLLOW: what was a directory a moment ago may not have become a link.
            here, shown = _moved(here, os.open(part, _WAY, dir_fd=here)), f"{shown}/{part}"
            judge(here, shown, trusted)
        return os.open(".", files.DIRECTORY, dir_fd=here)
    finally:
        os.close(here)


def judge_below(root: int, root_path: str, path: str) -> None:
    """Judge the directories on the way from an open root to `path` below it, as far as they exist."""
    if os.environ.get(TRUST, "") not in ("", "0"):
        return
    top = os.open("/", _WAY)
    try:
        trusted = _trusted(top)
    finally:
        os.close(top)
    parts = path.split("/") if path else []
    for length in range(1, len(parts) + 1):
        here = "/".join(parts[:length])
        try:
            with files.opened(root, here) as directory:
                judge(directory, f"{root_path}/{here}", trusted)
        except FileNotFoundError:
            return


def judge(directory: int, shown: str, trusted: frozenset[int]) -> None:
    """Judge one open directory. trusted: the owners that may be; empty: anything may be."""
    if not trusted:
        return
    status = os.fstat(directory)
    _judge_owner(shown, status, trusted, "")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise UnsafePlaceError(
            f"{printable(shown)} can be written to by everybody (mode {stat.S_IMODE(status.st_mode):04o}), so anybody "
            f"could replace what the engine loads; chmod o-w it, give another place with --root, or set {TRUST}=1"
        )


def _judge_owner(shown: str, status: os.stat_result, trusted: frozenset[int], what: str) -> None:
    if trusted and status.st_uid not in trusted:
        raise UnsafePlaceError(
            f"{what}{printable(shown)} belongs to user {status.st_uid}, not to root or to this user ({os.geteuid()}), "
            "and its owner could replace what the engine loads; run as that user, give another place with --root, or "
            f"set {TRUST}=1"
        )


def _trusted(top: int) -> frozenset[int]:
    # In a user namespace the owner of "/" is often shown as `nobody`: who owns that owns everything anyway.
    return frozenset({0, os.geteuid(), os.fstat(top).st_uid})


def _look(directory: int, part: str, *, create: bool) -> os.stat_result:
    try:
        return os.stat(part, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.close(files.make_directory(directory, part))
    return os.stat(part, dir_fd=directory, follow_symlinks=False)


def _parts(path: str) -> list[str]:
    """The parts of a path, last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _moved(old: int, new: int) -> int:
    os.close(old)
    return new


def is_read_only(root: int) -> bool:
    """Whether this process cannot write to an open directory: mounted read-only, or somebody else's."""
    return is_mounted_read_only(root) or not os.access(".", os.W_OK | os.X_OK, dir_fd=root, effective_ids=True)


def is_mounted_read_only(root: int) -> bool:
    """Whether nobody can write below an open directory."""
    return bool(os.fstatvfs(root).f_flag & os.ST_RDONLY)


def is_noexec(root: int) -> bool:
    """Whether nothing below an open directory can be loaded as a shared object."""
    return bool(os.fstatvfs(root).f_flag & os.ST_NOEXEC)


def network(root: int) -> str | None:
    """The kind of network file system that an open directory is on, None for a local one."""
    return NETWORKS.get(_file_system_type(root) & 0xFFFFFFFF)


def _file_system_type(root: int) -> int:
    """f_type of fstatfs(2), which Python does not pass on; 0 when it cannot be had."""
    import ctypes

    buffer = ctypes.create_string_buffer(256)
    try:
        if ctypes.CDLL(None).fstatfs(root, buffer):
            return 0
    except (OSError, AttributeError):
        return 0
    return ctypes.c_long.from_buffer(buffer).value


def notes(root: int, path: str) -> Iterator[str]:
    """What is to be said about a place that can be used all the same, one line each."""
    if kind := network(root):
        yield (
            f"{path} is on {kind}: locks may not reach other hosts there; every entry still comes in one step, and a "
            "start that finds it late compiles"
        )
