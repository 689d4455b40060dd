"""File operations below a cache root: by descriptor, never through a link, with modes free of the umask."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from model_cache.errors import ModelCacheError
from model_cache.wheel.names import printable

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
DIRECTORY_MODE = 0o755
FILE_MODE = 0o644

FULL = (errno.ENOSPC, errno.EDQUOT)
NO_LINKS = (errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP)
"""How making a hard link fails where there are none."""

NOT_REGULAR = (errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.ENXIO)
"""How opening a link, a directory or a special file as a regular file fails."""

RESERVE_BYTES = 16 * 1024 * 1024
"""What is left free on a disk."""

LAG_ATTEMPTS = 5
_RENAME_EXCHANGE = 2

T = TypeVar("T")


class LinkError(ModelCacheError):
    """A link stands where a directory has to be."""


def failure(what: str, path: str, error: OSError) -> ModelCacheError:
    """One clear line for a failed system call. what: e.g. "cannot write to"."""
    hints = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the disk quota is used up",
        errno.EROFS: "the file system is read-only; give another place with --root or VLLM_CACHE_ROOT",
        errno.EACCES: "permission denied; run as the user that owns it, or give another place with --root",
        errno.EPERM: "not permitted; run as the user that owns it, or give another place with --root",
    }
    return ModelCacheError(f"{what} {printable(path)}: {hints.get(error.errno or 0, error.strerror or str(error))}")


@contextmanager
def system_errors(path: str) -> Iterator[None]:
    """Turn an OSError from within into one clear line about `path`."""
    try:
        yield
    except OSError as error:
        raise failure("cannot write to", path, error) from error


def human(size: float) -> str:
    """A number of bytes for people, decimal: "9.8 MB"."""
    units = ["B", "kB", "MB", "GB", "TB"]
    size = min(size, 1e18)  # a hostile manifest's number may be longer than any float
    while size >= 1000 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{size:.0f} {units[0]}" if units[0] == "B" or size >= 100 else f"{size:.1f} {units[0]}"


@contextmanager
def opened(root: int, path: str, created: list[str] | None = None, *, durable: bool = True) -> Iterator[int]:
    """Open the directory `path` below directory `root` (descriptors), part by part.

    created: when given, missing directories are made and their paths appended to it; durable: and are on the disk.
    Raises LinkError for a link or a non-directory on the way, FileNotFoundError for a missing directory, another
    OSError for one that is listed and cannot be found.
    """
    directory = os.dup(root)
    try:
        done: list[str] = []
        for part in path.split("/") if path else ():
            done.append(part)
            inner = _open_part(directory, part, "/".join(done), created, durable=durable)
            os.close(directory)
            directory = inner
        yield directory
    finally:
        os.close(directory)


def _open_part(directory: int, part: str, path: str, created: list[str] | None, *, durable: bool) -> int:
    try:
        if created is None:
            return patiently(directory, part, lambda: os.open(part, DIRECTORY, dir_fd=directory))
        with suppress(FileNotFoundError):
            return os.open(part, DIRECTORY, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise LinkError(
                f"{printable(path)} below the cache root is a link or no directory; "
                "remove it, or give the real place with --root"
            ) from None
        raise
    with suppress(FileExistsError):
        os.mkdir(part, dir_fd=directory)
        created.append(path)
        if durable:
            os.fsync(directory)
    descriptor = os.open(part, DIRECTORY, dir_fd=directory)
    if created and created[-1] == path:
        os.fchmod(descriptor, DIRECTORY_MODE)
    return descriptor


def patiently(directory: int, name: str, find: Callable[[], T]) -> T:
    """What `find` gives for `name` in an open directory; FileNotFoundError only when it is not listed there either.

    A network disk may be late with a name that its listing has already; and what is taken for gone, and is not, would
    be noted nowhere any more.
    """
    for attempt in range(LAG_ATTEMPTS):
        try:
            return find()
        except FileNotFoundError:
            if name not in os.listdir(directory):
                raise
            time.sleep(0.02 * attempt)
    raise OSError(errno.ESTALE, f"is listed, and cannot be found: {printable(name)}")


def require_gone(root: int, path: str) -> None:
    """Raise OSError if `path` below directory `root`, which could not be found, is listed all the same."""
    folder, _, name = path.rpartition("/")
    with suppress(FileNotFoundError), opened(root, folder) as directory:
        patiently(directory, name, lambda: os.stat(name, dir_fd=directory, follow_symlinks=False))
        raise OSError(errno.ESTALE, f"was not found, and is there: {printable(path)}")


def make_directory(parent: int, name: str) -> int:
    """Make a new directory and open it."""
    os.mkdir(name, dir_fd=parent)
    descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    os.fchmod(descriptor, DIRECTORY_MODE)
    return descriptor


def open_regular(directory: int, name: str) -> int:
    """Open a regular file for reading. Raises OSError; a link or special file counts as EINVAL or ELOOP."""
    descriptor = os.open(name, READ, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file")
    return descriptor


def write_atomically(directory: int, name: str, data: bytes, temporary: str) -> None:
    """Write file `name` so that a reader sees the old or the new content, also after a crash."""
    descriptor = os.open(temporary, CREATE, FILE_MODE, dir_fd=directory)
    try:
        try:
            os.fchmod(descriptor, FILE_MODE)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    os.fsync(directory)


def walk(directory: int, prefix: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """(relative path, lstat) of everything below a directory, children before their directory, sorted."""
    for name in sorted(os.listdir(directory)):
        # An engine may be at work in there: what vanishes was not there.
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                inner = os.open(name, DIRECTORY, dir_fd=directory)
                try:
                    yield from walk(inner, f"{prefix}{name}/")
                finally:
                    os.close(inner)
            yield prefix + name, status


def remove_tree(parent: int, name: str) -> None:
    """Delete `name` and everything below it; links are deleted, not followed. Missing is fine."""
    try:
        directory = os.open(name, DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError:
        os.unlink(name, dir_fd=parent)
        return
    try:
        for child in sorted(os.listdir(directory)):
            status = os.stat(child, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                remove_tree(directory, child)
            else:
                os.unlink(child, dir_fd=directory)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=parent)


def sync_file_system(descriptor: int) -> bool:
    """Write all of the file system that holds an open directory to its disk; False where that cannot be asked for.

    Raises OSError when the disk has failed (told by Linux 5.8 and newer).
    """
    import ctypes

    try:
        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return False
    if syncfs(descriptor) == 0:
        return True
    number = ctypes.get_errno()
    if number == errno.ENOSYS:
        return False
    raise OSError(number, os.strerror(number))


def exchange(directory: int, one: str, other: str) -> bool:
    """Swap two names of a directory in one step; False where the system or the file system cannot."""
    import ctypes

    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if renameat2(directory, os.fsencode(one), directory, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number))
